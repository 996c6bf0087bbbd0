"""TrainingTime: the seconds that training itself takes; and laps, which say what was done in how many of them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class TrainingTime:
    """A clock that runs during training passes, and stands still in between and while it is paused.

    A pause that never ended makes a pass `unknown`: a validation has failed in it, and somebody went on without it.
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
        """Run: a training pass begins."""
        self._halt()
        self.is_paused = self.is_unknown = False
        self._since = self.clock()

    def end(self) -> None:
        """Stand still: the pass is over."""
        self.is_unknown |= self.is_paused
        self.is_paused = False
        self._halt()

    def pause(self) -> None:
        """Stand still until `go_on`, if it runs."""
        self.is_unknown |= self.is_paused
        self.is_paused |= self._since is not None
        self._halt()

    def go_on(self) -> None:
        """Run again, if it was paused."""
        if self.is_paused:
            self.is_paused = False
            self._since = self.clock()

    def take_off(self, seconds: float) -> None:
        """Leave out time that has passed, if the clock runs: something else than training was done in it."""
        if self._since is not None:
            self._seconds -= seconds

    def _halt(self) -> None:
        self._seconds, self._since = self.seconds, None


class Done(NamedTuple):
    """How much was done, and in how many seconds of training."""

    seconds: float = 0.0
    steps: int = 0
    samples: int = 0

    def plus(self, other: Done) -> Done:
        return Done(self.seconds + other.seconds, self.steps + other.steps, self.samples + other.samples)

    def minus(self, other: Done) -> Done:
        return Done(self.seconds - other.seconds, self.steps - other.steps, self.samples - other.samples)

    @property
    def seconds_per_step(self) -> float | None:
        return self.seconds / self.steps if self.steps else None


class Lap:
    """What was done since the lap began: the difference of two readings, and what a checkpoint has kept of it before."""

    def __init__(self) -> None:
        self._kept = Done()
        self._began: Done | None = None

    def begin(self, now: Done) -> None:
        self._kept, self._began = Done(), now

    def go_on(self, now: Done, kept: Done | None = None) -> None:
        """Go on with what was kept; without that, with what was done, unless it runs anyway."""
        if kept is not None or self._began is None:
            self._kept, self._began = kept or self._kept, now

    def stop(self, now: Done) -> None:
        self._kept, self._began = self.done(now), None

    def done(self, now: Done) -> Done:
        return self._kept if self._began is None else self._kept.plus(now.minus(self._began))
