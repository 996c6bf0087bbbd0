"""OnRequestExit: stop, and save, when someone outside asks for it."""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
from os import PathLike
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Unpack

from hookpoint.callbacks._shared.saver import refuse_place
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

OF_THE_LOOP = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
NOBODYS = ("SIGKILL", "SIGSTOP")
LOOK_EVERY_SECONDS = 1.0


class OnRequestExit(Callback):
    """Finish the step, save and stop, when a signal comes or when a file appears in the workdir.

    A run's loop ends at SIGTERM, SIGHUP and Ctrl-C in any case; with `save_ckpt` it saves then, as with any saver in the
    list, and it has to have a workdir. Another `sig`, such as SIGUSR2, is listened to while the run goes on, in the main
    thread only; then the run ends as after any stop, without SystemExit. So it does when `file` is made, which is deleted
    then: at most a second later. Starting the run again goes on from there.

    Of MindSpore's arguments, `file_name` and `directory` are refused, as a checkpoint is in its place in the workdir and is
    found there without being told, and so is `save_mindir`.

    Listens to on_run_begin, on_train_iter_end, on_epoch_end and on_run_end. Sends the event "stop". Keeps nothing in the
    checkpoint. Runs on all ranks. A step pays for a look at the clock, each second for one at the file.

    >>> import os, signal
    >>> with Loop([OnRequestExit(save_ckpt=False, sig=signal.SIGUSR2)]) as run:
    ...     for batch in run.batches(range(10)):
    ...         if batch == 2: os.kill(os.getpid(), signal.SIGUSR2)
    >>> run.step
    3
    """

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
        refuse_place("OnRequestExit", "directory", directory)
        refuse_place("OnRequestExit", "file_name", file_name)
        if save_mindir:
            raise BadArgument("OnRequestExit(save_mindir=True): there is no MindIR here.", leave="it out")
        if not isinstance(file, str) or file in ("", ".", "..") or any(one in file for one in "/\\\0"):
            raise BadArgument(f"OnRequestExit(file={file!r}) is no plain name; the file is in the workdir.")
        self.saves = save_ckpt
        self.sig = _signal(sig)
        self.file = file
        self._received = False
        self._before: Any = None
        self._path: Path | None = None
        self._next_look = 0.0

    def on_run_begin(self, run: Run) -> None:
        self._path = None if run.workdir is None else Path(run.workdir) / self.file
        self._next_look = 0.0
        self._received = False
        if self.sig not in OF_THE_LOOP and self._before is None:
            if threading.current_thread() is threading.main_thread():
                self._before = signal.signal(self.sig, self._handle)
            else:
                logger.warning(
                    "%s does not hear %s: signals come to the main thread only", self.name or "OnRequestExit", self.sig.name
                )

    def on_train_iter_end(self, run: Run) -> None:
        if self._received or monotonic() >= self._next_look:
            self._look(run)

    def on_epoch_end(self, run: Run) -> None:
        self._look(run)

    def on_run_end(self) -> None:
        if self._before is not None:
            signal.signal(self.sig, self._before)
            self._before = None

    def _look(self, run: Run) -> None:
        self._next_look = monotonic() + LOOK_EVERY_SECONDS
        if self._received:
            run.stop(f"{self.name or 'OnRequestExit'}: {self.sig.name} was received")
        elif self._path is not None and _is_own_file(self._path):
            try:
                self._path.unlink()
            except OSError as error:
                logger.warning("%s could not be deleted: %s; it would stop the next run as well", self._path, error.strerror)
            run.stop(f"{self.name or 'OnRequestExit'}: {self.file} was there")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received = True


def _signal(number: int) -> signal.Signals:
    try:
        found = signal.Signals(number)
    except ValueError:
        raise BadArgument(f"OnRequestExit(sig={number!r}) is no signal.", write="sig=signal.SIGUSR2") from None
    if found.name in NOBODYS:
        raise BadArgument(f"OnRequestExit(sig={found.name}): no program hears it.", write="sig=signal.SIGUSR2")
    if found.name == "SIGUSR1":
        raise BadArgument("OnRequestExit(sig=SIGUSR1): that asks for a checkpoint already.", write="sig=signal.SIGUSR2")
    return found


def _is_own_file(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
