"""StartProcOrThread: processes and threads that live as long as the run."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks.debug import _processes
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, BadLoop

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

LOOK_EVERY_SECONDS = 1.0
POLICIES = ("log", "stop")


class StartProcOrThread(Callback):
    """Start a process, a thread or a command when the run begins, and stop it when the run ends, also after an exception.

    `startable` is a multiprocessing.Process, a threading.Thread, anything with a `start` method, or a list of these; a command
    as a list of words, `["tensorboard", "--logdir", "runs"]`; or a function without arguments that returns any of them, which
    is called for each run: a process or thread can be started only once in its life. Ctrl-C reaches the training process
    alone, not what is started here (unless it comes from a fork server that was running before).

    With `stop_at_last` a `stop` method is called, or `terminate`, then `join`; what has not ended after `stop_seconds` is
    killed where that can be done. A thread without a `stop` method cannot be stopped, and a line says that it goes on. Without
    `stop_at_last` all of them go on. A process that ends by itself with an exit code other than 0 is noticed within a second
    of training: `if_it_dies="log"` says so once, and "stop" stops the run as well.

    Listens to on_setup, on_run_begin, on_train_iter_end, on_epoch_end and on_run_end. Sends the event "process died". Keeps
    nothing in the checkpoint. Runs on all ranks. A step pays for a look at the clock.

    >>> import threading
    >>> with Loop([StartProcOrThread(lambda: threading.Thread(target=print, args=["beside the run"]))]) as run:
    ...     for batch in run.batches(range(2)): pass
    beside the run
    """

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
        if if_it_dies not in POLICIES:
            raise BadArgument(f"StartProcOrThread(if_it_dies={if_it_dies!r}) is no policy.", choose="'log' or 'stop'")
        self.stop_seconds = number("StartProcOrThread", "stop_seconds", stop_seconds, least=0.0)
        self.stop_at_last = stop_at_last
        self.if_it_dies = if_it_dies
        self._make = startable if callable(startable) and (isinstance(startable, type) or not _starts(startable)) else None
        self._given = [] if self._make is not None else _several(startable)
        self._running: list[Any] = []
        self._said: list[Any] = []
        self._next_look = 0.0

    def on_setup(self) -> None:
        own = self.name or "StartProcOrThread"
        for child in self._given:
            if _processes.was_started(child):
                raise BadLoop(
                    f"{own}: {_processes.described(child)} was started before, and cannot be again.",
                    give="a function that makes a new one for each run: StartProcOrThread(lambda: Process(target=work))",
                )

    def on_run_begin(self) -> None:
        self._stop()
        self._said, self._next_look = [], 0.0
        for child in self._given if self._make is None else _several(self._make()):
            _processes.start(child)
            self._running.append(child)

    def on_train_iter_end(self, run: Run) -> None:
        if monotonic() >= self._next_look:
            self._look(run)

    def on_epoch_end(self, run: Run) -> None:
        self._look(run)

    def on_run_end(self) -> None:
        self._stop()

    def _look(self, run: Run) -> None:
        self._next_look = monotonic() + LOOK_EVERY_SECONDS
        for child in self._running:
            if _processes.has_died(child) and child not in self._said:
                self._said.append(child)
                line = f"{_processes.described(child)} has died with exit code {child.exitcode}"
                run.put_event("process died", child=_processes.described(child), exitcode=child.exitcode)
                if self.if_it_dies == "stop":
                    run.stop(f"{self.name or 'StartProcOrThread'}: {line}")
                else:
                    logger.warning("%s; the run goes on", line)

    def _stop(self) -> None:
        running, self._running = self._running, []
        for child in reversed(running) if self.stop_at_last else ():
            try:
                if not _processes.stop(child, self.stop_seconds):
                    daemon = "" if getattr(child, "daemon", True) else "; the program ends when it does"
                    logger.warning("%s cannot be stopped and goes on%s", _processes.described(child), daemon)
            except Exception as error:  # the others are to be stopped, too
                logger.warning("%s could not be stopped: %s: %s", _processes.described(child), type(error).__name__, error)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_running": [], "_said": []}


def _starts(one: Any) -> bool:
    return callable(getattr(one, "start", None)) and not isinstance(one, type)


def _several(startable: Any) -> list[Any]:
    """Return what is to be started, commands made of lists of words, or refuse it."""
    several = list(startable) if isinstance(startable, Iterable) and not isinstance(startable, str) else [startable]
    if several and all(isinstance(one, str) for one in several) and not isinstance(startable, str):
        return [_processes.Command(several)]
    found = [_processes.Command(one) if isinstance(one, list | tuple) and _are_words(one) else one for one in several]
    for one in found:
        if not _starts(one):
            raise BadArgument(
                f"StartProcOrThread cannot start {one!r}.",
                give="a Process, a Thread, anything with start(), a list of these,"
                " a command as a list of words, or a function that returns one",
            )
    if not found:
        raise BadArgument("StartProcOrThread got nothing to start.", give="a Process, a Thread or a list of them")
    return found


def _are_words(one: Any) -> bool:
    return bool(one) and all(isinstance(word, str) for word in one)
