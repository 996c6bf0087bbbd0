"""Looking at a run from outside its thread: what is drawn now and then, at no cost to a step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Event, Thread

logger = logging.getLogger("hookpoint")


class Ticker:
    """Call a function now and then on a thread of its own, until it is stopped. A failure is said once and ends it."""

    def __init__(self, seconds: float, tick: Callable[[], None]) -> None:
        self._seconds = seconds
        self._tick = tick
        self._stopping = Event()
        self._thread = Thread(target=self._work, name="hookpoint ProgressBar ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=1)  # no longer: a terminal that was halted with Ctrl-S holds the thread up

    def _work(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self._tick()
            except Exception as error:
                logger.warning("the progress bar failed: %s: %s; the run goes on without it", type(error).__name__, error)
                return


class Meter:
    """The rate of a pass over its last samples. A pass is known by its `key`; another one, or one begun anew, starts afresh."""

    SAMPLES = 40  # ten seconds at four a second; longer where batches take longer, as only changes count

    def __init__(self) -> None:
        self._key: object = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=self.SAMPLES)

    def add(self, key: object, done: int, now: float) -> float | None:
        """Take in how many batches are done, at a time in seconds; return batches per second, or None if it is too early."""
        if key != self._key or (self._samples and done < self._samples[-1][1]):
            self._key = key
            self._samples.clear()
        if not self._samples or done > self._samples[-1][1]:
            self._samples.append((now, done))
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else None
