"""The counting part of schedules: what is due, what has passed, and what a checkpoint keeps of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hookpoint.core.schedule.clocks import Clocks

# A tick on epochs belongs to the epoch now running, whose number everyone knows; a level counts what is done.
READ_TICK: dict[str, Callable[[Clocks], float]] = {
    "steps": lambda clocks: clocks.step,
    "iterations": lambda clocks: clocks.iteration,
    "epochs": lambda clocks: clocks.epoch,
    "samples": lambda clocks: clocks.samples,
    "seconds": lambda clocks: clocks.elapsed(),
}
READ_LEVEL: dict[str, Callable[[Clocks], float]] = {**READ_TICK, "epochs": lambda clocks: clocks.epochs_done}

# The same as source, for the compiled calls, where a schedule that is not due costs one comparison.
TICK_SOURCE = {
    "steps": "run._clocks.step",
    "iterations": "run._clocks.iteration",
    "epochs": "run._clocks.epoch",
    "samples": "run._clocks.samples",
    "seconds": "run._clocks.elapsed()",
}


class Clocked(Protocol):
    """A run, as schedules know it."""

    @property
    def _clocks(self) -> Clocks: ...


def clocks_of(run: Clocked) -> Clocks:
    return run._clocks


class ArmedSchedule(ABC):
    """A schedule that counts. `moment` is "iter" or "epoch" for triggers, None where every tick may be asked."""

    ticks = 0
    has_fired = False  # since it was armed

    @abstractmethod
    def ready(self, run: Clocked, moment: str | None) -> bool:
        """Say whether it is due now, changing nothing."""

    def settle(self, run: Clocked, moment: str | None, fired: bool) -> None:
        """Move on past now: ticks of counters in any case, ticks of time only when they fired."""

    def start(self, clocks: Clocks) -> None:
        """Count from where the clocks stand: nothing that has passed is due."""

    def take(self, run: Clocked, moment: str | None = None, allowed: bool = True) -> bool:
        """Say whether it is due now, and move on; a counter's tick that something else forbids is passed all the same."""
        due = allowed and self.ready(run, moment)
        self.settle(run, moment, due)
        if due:
            self.has_fired = True
        return due

    def quick_test(self, name: str, moment: str | None) -> str | None:
        """Return source that is false when `take` surely would be, or None; `name` is what the source calls this object."""
        return None

    def state(self) -> Any:
        """Return what a checkpoint keeps."""
        return None

    def load_state(self, state: Any) -> None:
        """Take back what `state` returned."""

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.load_state(state["schedule"])


class ArmedTick(ArmedSchedule):
    """Due when its clock reaches `due`; `following` gives the next value after one.

    A tick that `stays` is due until it fires; ticks of time always do. One that is asked `anywhere` ignores the moment.
    """

    ticks = 1

    def __init__(
        self,
        clock: str,
        due: float,
        following: Callable[[float], float],
        *,
        stays: bool = False,
        anywhere: bool = False,
    ) -> None:
        self.due = due
        self._anywhere = anywhere
        self._clock = clock
        self._read = READ_TICK[clock]
        self._following = following
        self._stays = stays or clock == "seconds"

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return self._asked_at(moment) and self._read(clocks_of(run)) >= self.due

    def settle(self, run: Clocked, moment: str | None, fired: bool) -> None:
        if (fired or not self._stays) and self._asked_at(moment):
            now = self._read(clocks_of(run))
            if now >= self.due:
                self.due = self._following(now)

    def start(self, clocks: Clocks) -> None:
        now = self._read(clocks)
        if now > 0 and now >= self.due:
            self.due = self._following(now)

    def quick_test(self, name: str, moment: str | None) -> str | None:
        return f"{TICK_SOURCE[self._clock]} >= {name}.due" if self._asked_at(moment) else "False"

    def state(self) -> Any:
        return None if math.isinf(self.due) else self.due

    def load_state(self, state: Any) -> None:
        self.due = math.inf if state is None else state

    def _asked_at(self, moment: str | None) -> bool:
        return moment is None or self._anywhere or (moment == "epoch") == (self._clock == "epochs")


class ArmedLevel(ArmedSchedule):
    """Hold while its clock is from low to below high."""

    def __init__(self, clock: str, low: float, high: float) -> None:
        self._read = READ_LEVEL[clock]
        self._low, self._high = low, high

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return self._low <= self._read(clocks_of(run)) < self._high


class ArmedIf(ArmedSchedule):
    """Hold when a function of the run says so."""

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        self._predicate = predicate

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return bool(self._predicate(run))


class ArmedCombination(ArmedSchedule):
    """What the combinations have in common: their parts settle together and keep their states in a list."""

    def __init__(self, parts: Sequence[ArmedSchedule]) -> None:
        self._parts = parts
        self.ticks = sum(part.ticks for part in parts)

    def settle(self, run: Clocked, moment: str | None, fired: bool) -> None:
        for part in self._parts:
            part.settle(run, moment, fired)

    def start(self, clocks: Clocks) -> None:
        for part in self._parts:
            part.start(clocks)

    def state(self) -> Any:
        return [part.state() for part in self._parts]

    def load_state(self, state: Any) -> None:
        for part, kept in zip(self._parts, state, strict=True):
            part.load_state(kept)


class ArmedAll(ArmedCombination):
    """Due when all parts are."""

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return all(part.ready(run, moment) for part in self._parts)

    def quick_test(self, name: str, moment: str | None) -> str | None:
        if self.ticks != 1:  # several have to be asked at every opportunity, or they would miss each other
            return None
        tests = (part.quick_test(f"{name}._parts[{position}]", moment) for position, part in enumerate(self._parts))
        return next(filter(None, tests), None)


class ArmedAny(ArmedCombination):
    """Due when any part is."""

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return any(part.ready(run, moment) for part in self._parts)

    def settle(self, run: Clocked, moment: str | None, fired: bool) -> None:
        for part in self._parts:
            part.settle(run, moment, fired and part.ready(run, moment))

    def quick_test(self, name: str, moment: str | None) -> str | None:
        tests = [part.quick_test(f"{name}._parts[{position}]", moment) for position, part in enumerate(self._parts)]
        return None if None in tests else " or ".join(f"({test})" for test in tests)


class ArmedNot(ArmedCombination):
    """Due when its part is not."""

    def __init__(self, part: ArmedSchedule) -> None:
        super().__init__([part])

    def ready(self, run: Clocked, moment: str | None) -> bool:
        return not self._parts[0].ready(run, moment)

    def settle(self, run: Clocked, moment: str | None, fired: bool) -> None:
        self._parts[0].settle(run, moment, True)
