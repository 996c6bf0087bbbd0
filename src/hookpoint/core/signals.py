"""Signals: the first Ctrl-C or SIGTERM asks the run to stop, the second one leaves at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Handlers that only set a flag; the loop acts on it at its next boundary. Whatever was installed is put back.

    Only a main thread may install handlers; elsewhere, and for signals that are ignored, nothing happens.
    """

    def __init__(self, ask: Callable[[str], object]) -> None:
        self.received: signal.Signals | None = None
        self._ask = ask
        self._before: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in WATCHED:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def ending(self) -> BaseException | None:
        """Return what a run that a signal stopped ends with, or None."""
        return None if self.received is None else _ending(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.restore()
            raise _ending(signal.Signals(number))
        self.received = signal.Signals(number)
        self._ask(f"{self.received.name} was received")


def _ending(number: signal.Signals) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
