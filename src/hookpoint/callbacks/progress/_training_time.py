"""TrainingTime: the time that training itself takes; and Elapsed, the work done in it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class TrainingTime:
    """A clock that runs during training passes, and stops between them and while it is paused.

    If a pause never ends, because a validation has failed and the loop continued, the time of the pass `is_unknown`.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._seconds = 0.0
        self._since: float | None = None
        self.is_paused = False
        self.is_unknown = False

    @property
    def is_running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        return self._seconds if self._since is None else self._seconds + self.clock() - self._since

    def begin(self) -> None:
        """Start with a training pass."""
        self._stop()
        self.is_paused = self.is_unknown = False
        self._since = self.clock()

    def end(self) -> None:
        """Stop at the end of the pass."""
        self.is_unknown |= self.is_paused
        self.is_paused = False
        self._stop()

    def pause(self) -> None:
        """Stop until `resume`, if the clock is running."""
        self.is_unknown |= self.is_paused
        self.is_paused |= self._since is not None
        self._stop()

    def resume(self) -> None:
        """Continue after a pause."""
        if self.is_paused:
            self.is_paused = False
            self._since = self.clock()

    def take_off(self, seconds: float) -> None:
        """Subtract time that was not spent on training, if the clock is running."""
        if self._since is not None:
            self._seconds -= seconds

    def _stop(self) -> None:
        self._seconds, self._since = self.seconds, None


class Elapsed(NamedTuple):
    """Seconds of training, with the steps and samples done in them."""

    seconds: float = 0.0
    steps: int = 0
    samples: int = 0

    def since(self, start: Elapsed) -> Elapsed:
        return Elapsed(self.seconds - start.seconds, self.steps - start.steps, self.samples - start.samples)

    @property
    def seconds_per_step(self) -> float | None:
        return self.seconds / self.steps if self.steps else None
