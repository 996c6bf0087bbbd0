"""Signals: the first Ctrl-C, SIGTERM or SIGHUP stops the run. The second exits immediately. SIGUSR1 requests a checkpoint.

SIGHUP arrives when a terminal is closed or a connection is lost. Under `nohup`, it is ignored, as usual.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from hookpoint.core.text.terminal import say, say_from_signal_handler

WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Signals:
    """Signal handlers that set a flag, which the loop checks at its next boundary. They are removed when the run ends.

    Only the main thread can install handlers. In other threads, under a host, and for ignored signals, no handler is
    installed. SIGUSR1 is handled if the run has a store and the signal has no other handler. `has_stopped` is True if a signal
    caused the first stop request.

    `caught` is the signal that arrived on this rank. In a team, `received` is set once all ranks have been told about it.
    `plan` returns what the run does before it ends, as text.
    """

    def __init__(self, request_stop: Callable[[str], bool], *, is_in_team: bool = False, has_host: bool = False) -> None:
        self.caught: signal.Signals | None = None
        self.received: signal.Signals | None = None
        self.has_stopped = self.is_leaving = self.is_restored = False
        self.request_save: Callable[[], None] | None = None  # None if there is no store
        self.saves = False
        self.plan: Callable[[], str] = str
        self._request_stop, self._is_in_team, self._has_host = request_stop, is_in_team, has_host
        self._previous: dict[signal.Signals, Any] = {}
        self._check: Callable[[FrameType | None], None] | None = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread() and not self._has_host:
            for number in WATCHED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
            user = getattr(signal, "SIGUSR1", None)
            if self.request_save is not None and user is not None and signal.getsignal(user) is signal.SIG_DFL:
                self._previous[user] = signal.signal(user, self._save)

    def restore(self) -> None:
        """Restore the previous handlers.

        If another run has installed its own handlers in the meantime, that run restores the previous handlers when it ends.
        """
        if not self.is_restored:
            self.is_restored = True
            for number in self._previous:
                if self._is_ours(number):
                    signal.signal(number, self.previous_handler(number))

    def previous_handler(self, number: signal.Signals) -> Any:
        """Return the handler that was installed before this run. Handlers of runs that have ended are ignored."""
        before = self._previous[number]
        owner = getattr(before, "__self__", None)
        return owner.previous_handler(number) if isinstance(owner, Signals) and owner.is_restored else before

    def ending(self, saved: str | None = None) -> BaseException | None:
        """Return the exception to raise at the end of a run that a signal stopped, or None.

        `saved` is the name of the checkpoint from which the script resumes. KeyboardInterrupt shows it below the traceback, and
        for other signals it is printed.
        """
        if self.received is None:
            return None
        ending = _ending(self.received)
        if saved is not None:
            line = f"saved {saved}; run the script again to resume"
            ending.add_note(line) if self.received == signal.SIGINT else say(line)
        return ending

    def can_interrupt(self) -> bool:
        """Return whether this run can interrupt its main thread with a signal that the run handles."""
        return self._for_interrupts() is not None

    def interrupt(self, check: Callable[[FrameType | None], None]) -> None:
        """Interrupt a wait in the main thread, and call `check` there. An exception from `check` ends the wait."""
        number = self._for_interrupts()
        if number is not None:
            self._check = check
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def _for_interrupts(self) -> signal.Signals | None:
        return next((number for number in WATCHED if number in self._previous and self._is_ours(number)), None)

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
        say_from_signal_handler(_notice(self.caught, self.plan(), saves=self.saves))
        if not self._is_in_team:
            self.take(self.caught)

    def take(self, received: signal.Signals) -> None:
        """Request a stop because of a signal."""
        self.received = received
        self.has_stopped = self._request_stop(f"{received.name} was received")

    def _save(self, number: int, frame: FrameType | None) -> None:
        if self.request_save is not None:
            self.request_save()


def _ending(number: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)


def _notice(number: signal.Signals, plan: str, *, saves: bool) -> str:
    if number != signal.SIGINT:
        return f"{number.name}: {plan}."
    return f"Ctrl-C: {plan}. Press Ctrl-C again to exit now{' without saving' if saves else ''}."
