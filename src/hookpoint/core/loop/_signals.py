"""Signals: the first Ctrl-C, SIGTERM or SIGHUP asks the run to stop, the second leaves at once; SIGUSR1 asks for a checkpoint.

SIGHUP comes when a terminal is closed or a connection is lost; under `nohup` it is ignored, and stays so.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol


class TeamSignals(Protocol):
    """Signals as the processes of a team handle them: one that was `caught` is `received` when all of them know of it."""

    caught: signal.Signals | None
    received: signal.Signals | None

    def take(self, received: signal.Signals) -> None: ...


WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Signals:
    """Handlers that only set a flag; the loop acts on it at its next boundary. Whatever was installed is put back.

    Only a main thread may install handlers; elsewhere, and for signals that are ignored, nothing happens. SIGUSR1 is watched
    where there is something to save to and nobody else listens to it. `has_stopped` says whether a signal, and nothing else
    before it, has asked the run to stop.

    Where a process is one of several, a signal that was `caught` is `received` when all of them know of it.
    """

    def __init__(self, request_stop: Callable[[str], bool], *, is_in_team: bool = False) -> None:
        self.caught: signal.Signals | None = None
        self.received: signal.Signals | None = None
        self.has_stopped = False
        self.is_leaving = False
        self.ask_save: Callable[[], None] | None = None  # None where there is nothing to save to
        self._is_in_team = is_in_team
        self._request_stop = request_stop
        self._before: dict[signal.Signals, Any] = {}
        self.is_restored = False
        self._check: Callable[[FrameType | None], None] | None = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
            if self.ask_save is not None and hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
                self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._save)

    def restore(self) -> None:
        """Put back what was there before. Where another run has its handler on top, that one does so when it ends."""
        if not self.is_restored:
            self.is_restored = True
            for number in self._before:
                if self._is_ours(number):
                    signal.signal(number, self.found_before(number))

    def found_before(self, number: signal.Signals) -> Any:
        """Return the handler that was there before, or, if it is of a run that has ended since, the one before that."""
        before = self._before[number]
        owner = getattr(before, "__self__", None)
        return owner.found_before(number) if isinstance(owner, Signals) and owner.is_restored else before

    def ending(self) -> BaseException | None:
        """Return what a run that a signal stopped ends with, or None."""
        return None if self.received is None else _ending(self.received)

    def can_interrupt(self) -> bool:
        """Say whether a signal of this process reaches a handler of this run."""
        return any(self._is_ours(number) for number in self._before)

    def interrupt(self, check: Callable[[FrameType | None], None]) -> None:
        """Call `check` in the main thread, inside of whatever it waits for; what it raises ends that wait."""
        number = next((number for number in self._before if number in WATCHED and self._is_ours(number)), None)
        if number is not None:
            self._check = check
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _is_ours(self, number: signal.Signals) -> bool:
        return getattr(signal.getsignal(number), "__self__", None) is self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._check is not None:
            check, self._check = self._check, None
            check(frame)
            return
        if self.caught is not None:
            self.restore()
            self.is_leaving = True
            raise _ending(signal.Signals(number))
        self.caught = signal.Signals(number)
        if not self._is_in_team:
            self.take(self.caught)

    def take(self, received: signal.Signals) -> None:
        """Act on a signal."""
        self.received = received
        self.has_stopped = self._request_stop(f"{received.name} was received")

    def _save(self, number: int, frame: FrameType | None) -> None:
        if self.ask_save is not None:
            self.ask_save()


def _ending(number: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
