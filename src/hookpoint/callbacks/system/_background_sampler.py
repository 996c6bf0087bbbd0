"""Sampler: read numbers periodically on a background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Condition, Thread

from hookpoint.core.logger import logger


class Sampler:
    """Call `add(read())` every `seconds` while the sampler is on.

    A sample describes the interval before it, so the first one is read `seconds` after the sampler is turned on. If the sampler
    is turned off while a sample is being read, that sample is dropped. A failure is logged and ends the sampler.
    """

    def __init__(
        self,
        owner: str,
        read: Callable[[], Mapping[int, float]],
        add: Callable[[Mapping[int, float]], None],
        seconds: float = 1.0,
    ) -> None:
        self._owner = owner
        self._read = read
        self._add = add
        self._seconds = seconds
        self._is_on = self._is_closing = False
        self._turns = 0
        self._change = Condition()
        self._thread = Thread(target=self._work, name=f"hookpoint {owner}", daemon=True)
        self._thread.start()

    def turn(self, *, on: bool) -> None:
        """Turn the sampler on or off. No sample is added once it is off."""
        with self._change:
            if on != self._is_on:
                self._is_on = on
                self._turns += 1
                self._change.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._change:
            self._is_closing = True
            self._turns += 1
            self._change.notify_all()
        self._thread.join(timeout=10)  # with a timeout, because a driver that hangs must not block the end of a run

    def _work(self) -> None:
        try:
            while (turn := self._wait()) is not None:
                sample = self._read()
                with self._change:
                    if turn == self._turns:
                        self._add(sample)
        except Exception as error:
            logger.warning("%s failed: %s: %s; the run continues without it", self._owner, type(error).__name__, error)

    def _wait(self) -> int | None:
        """Wait until the sampler has been on for `seconds`.

        Return how many times the sampler has been turned on or off, or None once it is closed.
        """
        with self._change:
            while not self._is_closing:
                turn, is_on = self._turns, self._is_on
                if not self._change.wait(self._seconds if is_on else None):
                    return turn
            return None
