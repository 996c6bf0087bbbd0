"""Ticker: call a function at intervals on a background thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from hookpoint.core.logger import logger


class Ticker:
    """Call `tick` every `seconds` seconds on a background thread, until `stop` is called.

    If `tick` raises an exception, a warning is logged and the thread ends.
    """

    def __init__(self, owner: str, seconds: float, tick: Callable[[], None]) -> None:
        self._owner = owner
        self._seconds = seconds
        self._tick = tick
        self._stopping = Event()
        self._thread = Thread(target=self._work, name=f"hookpoint {owner}", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread. Wait up to `timeout_seconds` for a tick in progress."""
        self._stopping.set()
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        try:
            while not self._stopping.wait(self._seconds):
                self._tick()
        except Exception as error:
            logger.warning("%s failed: %s: %s; the run continues without it", self._owner, type(error).__name__, error)
