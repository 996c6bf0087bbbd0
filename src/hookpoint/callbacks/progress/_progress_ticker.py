"""Ticker and Meter: watch a run from another thread, at no cost to a step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread

logger = logging.getLogger("hookpoint")


class Ticker:
    """Call a function at intervals on its own thread until `stop`. A failure is logged once and ends the thread."""

    def __init__(self, seconds: float, tick: Callable[[], None]) -> None:
        self._seconds = seconds
        self._tick = tick
        self._stopping = Event()
        self._thread = Thread(target=self._work, name="hookpoint ProgressBar ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=1)  # a terminal that is halted with Ctrl-S blocks the thread

    def _work(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self._tick()
            except Exception as error:
                logger.warning("The progress bar failed: %s: %s; the run continues without it", type(error).__name__, error)
                return


class Meter:
    """Measure the rate of a pass over its last samples. A new `key`, or fewer batches done, starts a new measurement."""

    SAMPLES = 40  # ten seconds at four per second; longer with slow batches, as only changes count

    def __init__(self) -> None:
        self._key: object = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=self.SAMPLES)

    def add(self, key: object, done: int, now: float) -> float | None:
        """Add the number of batches done at a time in seconds; return batches per second, or None if it is too early."""
        if key != self._key or (self._samples and done < self._samples[-1][1]):
            self._key = key
            self._samples.clear()
        if not self._samples or done > self._samples[-1][1]:
            self._samples.append((now, done))
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else None
