"""OnRequestExit: stop and save on a signal or when a file appears."""

from __future__ import annotations

import os
import signal
import threading
from os import PathLike
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import file_name as checked_file_name
from hookpoint.callbacks._shared.saver import reject_path
from hookpoint.callbacks._shared.workdir import file_problem
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

LOOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
REFUSED_SIGNALS = {
    "SIGKILL": "no program can handle this signal",
    "SIGSTOP": "no program can handle this signal",
    "SIGUSR1": "this signal already requests a checkpoint",
}
CHECK_SECONDS = 1.0


class OnRequestExit(Callback):
    """Finish the step, save and stop when a signal arrives or a file appears in the workdir.

    SIGTERM, SIGHUP and Ctrl-C always end a loop. With `save_ckpt`, the loop also saves a checkpoint before it ends, even if no
    other callback saves checkpoints. This requires a workdir. Any other `sig`, such as SIGUSR2, is handled during the run, but
    only if the run begins in the main thread. After such a signal, the run ends as it does after any stop, without SystemExit.
    The run also ends within a second after `file` is created, and OnRequestExit then deletes the file. If you start the run
    again, it resumes. Sends the event "stop".

    MindSpore's arguments `file_name` and `directory` are not supported, because checkpoints are always in the workdir.
    `save_mindir` is not supported either.

    >>> import os, signal
    >>> with Loop([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)]) as run:
    ...     for batch in run.batches(range(10)):
    ...         if batch == 2: os.kill(os.getpid(), signal.SIGUSR2)
    >>> run.step
    3
    """

    step_cost: ClassVar[str] = "reading the clock; once per second, a check for the file"

    def __init__(
        self,
        save_ckpt: bool = True,
        save_mindir: bool = False,
        file_name: str | None = None,
        directory: str | PathLike[str] | None = None,
        sig: int = signal.SIGTERM,
        *,
        file: str = "REQUEST_EXIT.tmp",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        reject_path("OnRequestExit", "directory", directory)
        reject_path("OnRequestExit", "file_name", file_name)
        if save_mindir:
            raise BadArgument(
                "OnRequestExit: save_mindir=True is not supported; hookpoint does not write MindIR files.",
                leave="save_mindir out",
            )
        self.saves = save_ckpt
        self.sig = _signal(sig)
        self.file = checked_file_name("OnRequestExit", "file", file)
        self._received = False
        self._previous_handler: Any = None
        self._path: Path | None = None
        self._next_check = 0.0

    def on_run_begin(self, run: Run) -> None:
        self._path = None if run.workdir is None else Path(run.workdir) / self.file
        self._next_check = 0.0
        self._received = False
        if self.sig.name not in LOOP_SIGNALS and self._previous_handler is None:
            if threading.current_thread() is threading.main_thread():
                self._previous_handler = signal.signal(self.sig, self._handle)
            else:
                owner = self.name or "OnRequestExit"
                logger.warning("%s cannot handle %s: only the main thread receives signals", owner, self.sig.name)

    def on_train_iter_end(self, run: Run) -> None:
        if self._received or monotonic() >= self._next_check:
            self.on_epoch_end(run)

    def on_epoch_end(self, run: Run) -> None:
        self._next_check = monotonic() + CHECK_SECONDS
        if self._received:
            run.stop(f"{self.name or 'OnRequestExit'}: {self.sig.name} was received")
        elif self._path is not None and _is_own_file(self._path):
            try:
                self._path.unlink()
            except OSError as error:
                logger.warning("Cannot delete %s: %s; this file will also stop the next run", self._path, error.strerror)
            run.stop(f"{self.name or 'OnRequestExit'}: found {self.file}")

    def on_run_end(self) -> None:
        """Remove this callback's handler, even if other callbacks have installed theirs since."""
        previous, self._previous_handler = self._previous_handler, None
        newer, owner = None, _owner(signal.getsignal(self.sig))
        while previous is not None and owner is not None and owner is not self:
            newer, owner = owner, _owner(owner._previous_handler)
        if previous is None or owner is None:
            return
        if newer is None:
            signal.signal(self.sig, previous)
        else:
            newer._previous_handler = previous

    def _handle(self, *signal_and_frame: Any) -> None:
        self._received = True


def _owner(handler: Any) -> OnRequestExit | None:
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, OnRequestExit) else None


def _signal(number: int) -> signal.Signals:
    try:
        sig = signal.Signals(number)
        problem = REFUSED_SIGNALS.get(sig.name)
    except ValueError:
        problem = "it is not a signal"
    if problem is not None:
        raise BadArgument(f"OnRequestExit: sig={number!r} is not supported: {problem}.", write="sig=signal.SIGUSR2") from None
    return sig


def _is_own_file(path: Path) -> bool:
    try:
        return not file_problem(os.lstat(path))
    except OSError:
        return False
