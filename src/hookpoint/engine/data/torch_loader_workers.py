"""TorchLoaderWorkers: report what a DataLoader's workers do while a run waits for them, and why a worker exited.

torch itself reports neither. This module reads private attributes of torch's DataLoader iterator to find out which worker is
loading which batch. If a release of torch lacks these attributes, the reports contain less detail.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from hookpoint.core.hang.process_state import GONE, STOPPED, state_of_process

ASK = signal.SIGUSR2  # a worker responds to this signal with its stack
ANSWER_SECONDS = 2.0
END_SECONDS = 1.0
STACK_LINES = 12


class TorchLoaderWorkers:
    """Inspect the workers of torch's DataLoader and its subclasses."""

    def prepare(self, loader: Any) -> None:
        """Prepare a loader before it starts its workers, so that the workers can report their stacks."""
        if isinstance(loader, DataLoader) and loader.num_workers and not isinstance(loader.worker_init_fn, StackOnRequest):
            loader.worker_init_fn = StackOnRequest(loader.worker_init_fn)

    def is_worker_exit(self, error: BaseException) -> bool:
        """Return whether an error means that a worker has exited. torch may raise such an error anywhere in training."""
        return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")

    def stall(self, frames: list[FrameType]) -> WorkerStall | None:
        """Find the DataLoader iterator that a thread is waiting for. Return None if no iterator with workers is found.

        `frames` is the thread's stack, innermost frame first.
        """
        for frame in frames:
            iterator = frame.f_locals.get("self")
            if getattr(iterator, "_workers", None) and hasattr(iterator, "_task_info"):
                return WorkerStall(iterator)
        return None


class WorkerStall:
    """The DataLoader iterator that the run is waiting for, or that has failed."""

    def __init__(self, iterator: Any) -> None:
        init = getattr(iterator, "_worker_init_fn", None)
        self._stacks = init if isinstance(init, StackOnRequest) else None
        self._iterator = iterator
        self._workers = dict(enumerate(getattr(iterator, "_workers", ())))
        # Maps the index of a batch to the worker that loads the batch. Once the batch has arrived, its data is also included.
        self._owed = dict(getattr(iterator, "_task_info", {}))
        self._awaited: int = getattr(iterator, "_rcvd_idx", 0)

    def report(self) -> list[str]:
        """Describe the worker that the run is waiting for, with the worker's stack if it still responds."""
        number = self._worker_of(self._awaited)
        if number is None:
            return [f"DataLoader worker {one} {_process(worker)}" for one, worker in self._workers.items()]
        worker = self._workers[number]
        can_answer = not state_of_process(worker.pid).startswith((GONE, STOPPED))
        stack = self._stacks.of(worker.pid) if self._stacks is not None and can_answer else []
        return [f"DataLoader worker {number} {_process(worker)}; it is loading this batch", *stack]

    def cures(self) -> dict[str, str]:
        """Return suggestions for the user. Each key is a verb, and its value completes the sentence."""
        pids = [worker.pid for worker in self._workers.values()]
        stopped = [str(pid) for pid in pids if state_of_process(pid).startswith(STOPPED)]
        return {"continue": f"it with kill -CONT {' '.join(stopped)}"} if stopped else {}

    def failure(self, batch_idx: int, error: BaseException) -> str:
        """Describe which worker exited and which batches it was loading. The run was waiting for the batch `batch_idx`."""
        self._forget_pids()
        if isinstance(error, OSError | EOFError):  # the connection broke; the worker exits a moment later
            deadline = monotonic() + END_SECONDS
            while all(worker.is_alive() for worker in self._workers.values()) and monotonic() < deadline:
                sleep(0.01)
        texts = []
        for number, worker in self._workers.items():
            code = None if worker.is_alive() else worker.exitcode
            if code:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
                hint = " (possibly out of memory)" if code == -signal.SIGKILL else ""
                owed = sorted(batch for batch in self._owed if self._worker_of(batch) == number) or [self._awaited]
                batches = " and ".join(str(batch_idx + batch - self._awaited) for batch in owed)
                texts.append(f"DataLoader worker {number} (process {worker.pid}) {how}{hint} before it sent batch {batches}")
        return "; ".join(texts)

    def close(self) -> None:
        """Shut down the workers, unless they are persistent."""
        # Without this call, the workers would run until the iterator is garbage collected, because the traceback keeps the
        # iterator alive. Garbage collection would close the iterator's queues before torch tells the workers to stop. torch
        # would then wait five seconds for each worker.
        if not getattr(self._iterator, "_persistent_workers", True):
            with suppress(Exception):
                getattr(self._iterator, "_shutdown_workers", _nothing)()

    def kill(self) -> None:
        """Kill the workers. A suspended worker would keep the process from exiting."""
        self._forget_pids()
        for worker in self._workers.values():
            with suppress(OSError, ValueError):
                worker.kill()

    def _forget_pids(self) -> None:
        """Remove the workers' process ids from torch, so that it does not raise another error because a worker has exited."""
        with suppress(ValueError, RuntimeError):
            getattr(signal_handling, "_remove_worker_pids", _nothing)(id(self._iterator))
            getattr(signal_handling, "_set_worker_pids", _nothing)(id(self._iterator), ())

    def _worker_of(self, batch: int) -> int | None:
        """Return the index of the worker that is loading a batch, or None if it is unknown."""
        info = self._owed.get(batch, ())
        return info[0] if len(info) == 1 and info[0] in self._workers else None


class StackOnRequest:
    """A `worker_init_fn` that makes a worker send its stack trace when it receives a signal. It then calls the user's own."""

    def __init__(self, init: Callable[[int], Any] | None, answers: Any = None) -> None:
        self.init = init
        self._read_end: Any = None
        self._answers = answers
        if answers is None:
            self._read_end, self._answers = Pipe(duplex=False)

    def __call__(self, number: int) -> None:
        if signal.getsignal(ASK) is signal.SIG_DFL:
            os.set_blocking(self._answers.fileno(), False)
            faulthandler.register(ASK, file=self._answers.fileno(), all_threads=False)
        if self.init is not None:
            self.init(number)

    def __reduce__(self) -> tuple[Any, ...]:
        is_for_worker = get_spawning_popen() is not None  # a pipe can only be pickled for a process that is starting
        return StackOnRequest, (self.init, self._answers) if is_for_worker else (self.init,)

    def of(self, pid: int) -> list[str]:
        """Return the lines of a worker's stack, innermost frame first. Return an empty list if the worker does not respond."""
        if signal.getsignal(ASK) is not signal.SIG_DFL or not _catches(pid, ASK):
            return []
        self._read(0.0)
        with suppress(OSError):
            os.kill(pid, ASK)
            return [line.strip() for line in self._read(ANSWER_SECONDS).splitlines() if line.strip()][:STACK_LINES]
        return []

    def _read(self, seconds: float) -> str:
        found = b""
        while self._read_end is not None and select.select([self._read_end], [], [], seconds)[0]:
            found += os.read(self._read_end.fileno(), 65536)
            seconds = 0.05  # the stack arrives in several pieces
        return found.decode(errors="replace")


def _nothing(*_: Any) -> None:
    """Do nothing. This replaces functions that the installed torch does not have."""


def _process(worker: Any) -> str:
    return f"(process {worker.pid}) is {state_of_process(worker.pid)}"


def _catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process handles a signal. Without a handler, the signal would kill the process."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)
    return False
