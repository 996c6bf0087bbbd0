"""StartProcOrThread: run processes and threads during a run."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Any, Literal, Unpack

from hookpoint.callbacks._shared.arguments import choice, number
from hookpoint.callbacks.debug import _processes
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument, BadLoop
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

CHECK_EVERY_SECONDS = 1.0


class StartProcOrThread(Callback):
    """Start a process, a thread or a command when the run begins, and stop it when the run ends, even after an exception.

    `startable` is one of these:

    - a multiprocessing.Process, a threading.Thread, an object with a `start` method, or a list of them;
    - a command as a list of strings: `["tensorboard", "--logdir", "runs"]`;
    - a function without arguments that returns any of these. The function is called for each run, because a process or thread
      can be started only once.

    Processes that this callback starts do not receive Ctrl-C, unless they come from a fork server that was already running.

    With `stop_at_last`, the callback stops each process, thread and command at the end of the run. It calls the `stop` method
    or, if there is none, the `terminate` method, and then calls `join`. A process that has not ended after `stop_seconds` is
    killed if possible. A thread without a `stop` method cannot be stopped, and a warning is logged. Without `stop_at_last`,
    processes and threads keep running. During training, the callback checks about once per second whether a process has exited
    with a code other than 0. With `if_it_dies="log"`, it then logs one warning. With "stop", it stops the run.

    Listens to on_setup, on_run_begin, on_train_iter_end, on_epoch_end and on_run_end. Sends the event "process died".

    >>> import threading
    >>> with Loop([StartProcOrThread(lambda: threading.Thread(target=print, args=["in a thread"]))]) as run:
    ...     for batch in run.batches(range(2)): pass
    in a thread
    """

    step_cost = "reading the clock"

    def __init__(
        self,
        startable: Any,
        stop_at_last: bool = True,
        *,
        stop_seconds: float = 5.0,
        if_it_dies: Literal["log", "stop"] = "log",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.stop_seconds = number("StartProcOrThread", "stop_seconds", stop_seconds, least=0.0)
        self.stop_at_last = stop_at_last
        self.if_it_dies = choice("StartProcOrThread", "if_it_dies", if_it_dies, ("log", "stop"))
        is_factory = callable(startable) and (isinstance(startable, type) or not _starts(startable))
        self._factory = startable if is_factory else None
        self._workers = [] if is_factory else _workers(startable)
        self._running: list[Any] = []
        self._reported: list[Any] = []
        self._next_check = 0.0

    def on_setup(self) -> None:
        owner = self.name or "StartProcOrThread"
        for worker in self._workers:
            if _processes.was_started(worker):
                raise BadLoop(
                    f"{owner}: {_processes.described(worker)} was already started and cannot be started again.",
                    give="a function that creates a new object for each run: StartProcOrThread(lambda: Process(target=work))",
                )

    def on_run_begin(self) -> None:
        self.on_run_end()
        self._reported, self._next_check = [], 0.0
        for worker in self._workers if self._factory is None else _workers(self._factory()):
            _processes.start(worker)
            self._running.append(worker)

    def on_train_iter_end(self, run: Run) -> None:
        if monotonic() >= self._next_check:
            self._check(run)

    def on_epoch_end(self, run: Run) -> None:
        self._check(run)

    def on_run_end(self) -> None:
        running, self._running = self._running, []
        for worker in reversed(running) if self.stop_at_last else ():
            try:
                if not _processes.stop(worker, self.stop_seconds):
                    daemon = "" if getattr(worker, "daemon", True) else "; the program does not exit until the thread ends"
                    logger.warning("%s cannot be stopped and keeps running%s", _processes.described(worker), daemon)
            except Exception as error:  # the other workers must still be stopped
                logger.warning("%s could not be stopped: %s: %s", _processes.described(worker), type(error).__name__, error)

    def _check(self, run: Run) -> None:
        self._next_check = monotonic() + CHECK_EVERY_SECONDS
        for worker in self._running:
            if _processes.has_died(worker) and worker not in self._reported:
                self._reported.append(worker)
                line = f"{_processes.described(worker)} died with exit code {worker.exitcode}"
                run.put_event("process died", child=_processes.described(worker), exitcode=worker.exitcode)
                if self.if_it_dies == "stop":
                    run.stop(f"{self.name or 'StartProcOrThread'}: {line}")
                else:
                    logger.warning("%s; the run continues", line)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_running": [], "_reported": []}


def _starts(candidate: Any) -> bool:
    return callable(getattr(candidate, "start", None)) and not isinstance(candidate, type)


def _workers(startable: Any) -> list[Any]:
    """Return the objects to start. A list of strings becomes a command."""
    items = list(startable) if isinstance(startable, Iterable) and not isinstance(startable, str) else [startable]
    if _is_command(items) and not isinstance(startable, str):
        items = [items]
    workers = [_processes.Command(item) if isinstance(item, list | tuple) and _is_command(item) else item for item in items]
    for worker in workers:
        if not _starts(worker):
            raise BadArgument(
                f"StartProcOrThread cannot start {worker!r}.",
                give="a Process, a Thread, an object with start(), a command as a list of strings, a list of these,"
                " or a function that returns one",
            )
    if not workers:
        raise BadArgument("StartProcOrThread: startable is empty.", give="a Process, a Thread or a list of them")
    return workers


def _is_command(words: Any) -> bool:
    return bool(words) and all(isinstance(word, str) for word in words)
