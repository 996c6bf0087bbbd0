"""Sampler: figures that are read now and then on a thread of their own, and averaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from threading import Condition, Thread

logger = logging.getLogger("hookpoint")


class Averages:
    """The average of each of several figures, by their numbers."""

    def __init__(self) -> None:
        self.sums: dict[int, tuple[float, int]] = {}

    def add(self, sample: Mapping[int, float]) -> None:
        for number, value in sample.items():
            total, count = self.sums.get(number, (0.0, 0))
            self.sums[number] = (total + value, count + 1)

    def take(self) -> dict[int, float]:
        """Return the averages, and start anew."""
        sums, self.sums = self.sums, {}
        return {number: total / count for number, (total, count) in sums.items()}


class Sampler:
    """Read a sample every so many seconds while it is on, and hand it over.

    A sample is of the time before it: the first one comes when the sampler was on for so long, and one that was not read to its
    end when it is turned off is dropped. A failure is said once and ends it.
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
        """Turn it on or off; when it is off, no sample is handed over any more."""
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
        self._thread.join(timeout=10)  # no longer: a driver that hangs must not hold up the end of a run

    def _work(self) -> None:
        try:
            while (turn := self._wait()) is not None:
                sample = self._read()
                with self._change:
                    if turn == self._turns:
                        self._add(sample)
        except Exception as error:
            logger.warning("%s failed: %s: %s; the run goes on without it", self._owner, type(error).__name__, error)

    def _wait(self) -> int | None:
        """Return when it was on for long enough, with what tells whether it still is; None when it closes."""
        with self._change:
            while not self._is_closing:
                turn = self._turns
                if not self._is_on:
                    self._change.wait()
                elif not self._change.wait_for(partial(self._has_turned_since, turn), self._seconds):
                    return turn
            return None

    def _has_turned_since(self, turn: int) -> bool:
        return self._turns != turn
