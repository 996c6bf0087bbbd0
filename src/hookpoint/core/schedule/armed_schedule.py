"""Armed schedules: schedules that track when they are due. A checkpoint stores the state of each armed schedule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.run_view import RunView
    from hookpoint.core.schedule.clocks import Clocks

# READ_TICK and READ_LEVEL contain functions that read a clock. They differ only for epochs: READ_TICK returns the number of the
# current epoch, and READ_LEVEL returns the number of completed epochs.
COUNTERS = {"steps": "step", "iterations": "iteration", "epochs": "epoch", "samples": "samples"}
READ_TICK: dict[str, Callable[[Clocks], float]] = {clock: attrgetter(name) for clock, name in COUNTERS.items()}
READ_TICK["seconds"] = methodcaller("elapsed")
READ_LEVEL: dict[str, Callable[[Clocks], float]] = {**READ_TICK, "epochs": attrgetter("epochs_done")}
# Source code that reads the clocks above, for compiled dispatch. A schedule that is not due costs one comparison.
TICK_SOURCE = {clock: f"run._clocks.{name}" for clock, name in {**COUNTERS, "seconds": "elapsed()"}.items()}


clocks_of: Callable[[RunView], Any] = attrgetter("_clocks")


class ArmedSchedule(ABC):
    """A schedule with state.

    The argument `moment` of the methods shows when the schedule is checked. It is "iter" if a trigger is checked at the end
    of an iteration, and "epoch" if a trigger is checked at the end of an epoch. For a handler with its own schedule, `moment`
    is None, and ticks on all clocks are checked.
    """

    when = ""  # the schedule as text, to detect that it has changed since a checkpoint
    ticks = 0
    by_clock = True  # whether the schedule depends only on clocks, not on a user's function
    has_fired = False  # whether the schedule has fired since it was armed

    @abstractmethod
    def ready(self, run: RunView, moment: str | None) -> bool:
        """Return whether the schedule is due now, without changing it."""

    def settle(self, run: RunView, moment: str | None, fired: bool) -> None:
        """Advance past the current clock values. Counter ticks always advance. Time ticks advance only if they fired."""

    def start(self, clocks: Clocks) -> None:
        """Start from the current clock values, so that past ticks are not due."""

    def join(self, earlier: str = "") -> None:
        """Join a resumed run whose checkpoint does not contain this schedule. A `Once` in the past becomes due.

        `earlier` is the text of the schedule that this schedule replaces. A `Once` that is also part of it does not become due.
        """

    def take(self, run: RunView, moment: str | None = None, allowed: bool = True) -> bool:
        """Return whether the schedule is due now, and advance it. Counter ticks advance even if `allowed` is False."""
        try:
            due = allowed and self.ready(run, moment)
            self.settle(run, moment, due)
        except Exception:  # from a user's function
            self.settle(run, moment, False)
            raise
        if due:
            self.has_fired = True
        return due

    def quick_test(self, name: str, moment: str | None) -> str | None:
        """Return the source code of a quick test, or None if there is no quick test for this schedule.

        If the test is false, the schedule is not due, and `take` need not be called. In the source code, this schedule is the
        variable `name`.
        """
        return None

    def state(self) -> Any:
        """Return the state to save in a checkpoint."""
        return None

    def load_state(self, state: Any) -> None:
        """Restore the state that `state` returned."""

    def restore(self, state: Any, when: str | None) -> None:
        """Restore the state of the schedule `when`, unless the schedule has changed since. Older checkpoints lack `when`."""
        if when == self.when or (when is None and self.fits(state)):
            self.load_state(state)
        else:
            self.join(when or "")

    def fits(self, state: Any) -> bool:
        """Return whether a state without a text may be of this schedule. Called after `start`, at the saved clock values."""
        return isinstance(state, list) == isinstance(self.state(), list)

    def state_dict(self) -> dict[str, Any]:
        return {"schedule": self.state(), "when": self.when}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restore(state["schedule"], state.get("when"))


class ArmedTick(ArmedSchedule):
    """A schedule that is due when its clock reaches `due`. `following` returns the next due value after a given value.

    With `stays`, a tick remains due until it fires, as time ticks always do. With `anywhere`, it is checked at the end of
    iterations and at the end of epochs.
    """

    ticks = 1

    def __init__(
        self, clock: str, due: float, following: Callable[[float], float], *, stays: bool = False, anywhere: bool = False
    ) -> None:
        self.due, self._clock, self._read = due, clock, READ_TICK[clock]
        self._following, self._anywhere = following, anywhere
        self._stays, self._is_once = stays or clock == "seconds", stays
        self._missed: float | None = None  # the due value of a `Once` that was in the past at `start`

    def ready(self, run: RunView, moment: str | None) -> bool:
        return self._is_checked_at(moment) and self._read(clocks_of(run)) >= self.due

    def settle(self, run: RunView, moment: str | None, fired: bool) -> None:
        if (fired or not self._stays) and self._is_checked_at(moment):
            now = self._read(clocks_of(run))
            if now >= self.due:
                self.due = self._following(now)

    def start(self, clocks: Clocks) -> None:
        now = READ_LEVEL[self._clock](clocks)
        if now > 0 and now >= self.due:
            self._missed, self.due = self.due, self._following(now)

    def join(self, earlier: str = "") -> None:
        if self._is_once and self._missed is not None and (not self.when or self.when not in earlier):
            self.due, self._missed = self._missed, None

    def quick_test(self, name: str, moment: str | None) -> str | None:
        return f"{TICK_SOURCE[self._clock]} >= {name}.due" if self._is_checked_at(moment) else "False"

    def state(self) -> Any:
        return None if math.isinf(self.due) else self.due

    def load_state(self, state: Any) -> None:
        self.due = math.inf if state is None else state

    def fits(self, state: Any) -> bool:
        # The saved tick is at most one later than the one after `start`: a tick on epochs may be over before its epoch is.
        return state is None or (isinstance(state, int | float) and state <= self._following(self.due))

    def _is_checked_at(self, moment: str | None) -> bool:
        return moment is None or self._anywhere or (moment == "epoch") == (self._clock == "epochs")


class ArmedLevel(ArmedSchedule):
    """A schedule that is true while its clock is at least `low` and below `high`."""

    def __init__(self, clock: str, low: float, high: float) -> None:
        self._read = READ_LEVEL[clock]
        self._low, self._high = low, high

    def ready(self, run: RunView, moment: str | None) -> bool:
        return self._low <= self._read(clocks_of(run)) < self._high


class ArmedIf(ArmedSchedule):
    """A schedule that is true when a function of the run returns a true value."""

    by_clock = False

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        self._predicate = predicate

    def ready(self, run: RunView, moment: str | None) -> bool:
        return bool(self._predicate(run))


class ArmedCombination(ArmedSchedule):
    """The base class of combined schedules. The parts advance together, and their states are stored in a list."""

    def __init__(self, parts: Sequence[ArmedSchedule]) -> None:
        self._parts = parts
        self.ticks = sum(part.ticks for part in parts)
        self.by_clock = all(part.by_clock for part in parts)

    def settle(self, run: RunView, moment: str | None, fired: bool) -> None:
        for part in self._parts:
            part.settle(run, moment, fired)

    def start(self, clocks: Clocks) -> None:
        for part in self._parts:
            part.start(clocks)

    def join(self, earlier: str = "") -> None:
        for part in self._parts:
            part.join(earlier)

    def state(self) -> Any:
        return [part.state() for part in self._parts]

    def load_state(self, state: Any) -> None:
        for part, part_state in zip(self._parts, state, strict=True):
            part.load_state(part_state)

    def fits(self, state: Any) -> bool:
        is_list = isinstance(state, list) and len(state) == len(self._parts)
        return is_list and all(part.fits(part_state) for part, part_state in zip(self._parts, state, strict=True))


class ArmedAll(ArmedCombination):
    """A schedule that is due when all parts are due."""

    def ready(self, run: RunView, moment: str | None) -> bool:
        return all(part.ready(run, moment) for part in self._parts)

    def quick_test(self, name: str, moment: str | None) -> str | None:
        if self.ticks != 1:  # with several ticks, check every tick: an unchecked tick would stay due for too long
            return None
        tests = (part.quick_test(f"{name}._parts[{position}]", moment) for position, part in enumerate(self._parts))
        return next(filter(None, tests), None)


class ArmedAny(ArmedCombination):
    """A schedule that is due when any part is due."""

    def ready(self, run: RunView, moment: str | None) -> bool:
        return any(part.ready(run, moment) for part in self._parts)

    def settle(self, run: RunView, moment: str | None, fired: bool) -> None:
        for part in self._parts:
            part.settle(run, moment, fired and part.ready(run, moment))

    def quick_test(self, name: str, moment: str | None) -> str | None:
        tests = [part.quick_test(f"{name}._parts[{position}]", moment) for position, part in enumerate(self._parts)]
        return None if None in tests else " or ".join(f"({test})" for test in tests)


class ArmedNot(ArmedCombination):
    """A schedule that is due when its part is not due."""

    def __init__(self, part: ArmedSchedule) -> None:
        super().__init__([part])

    def ready(self, run: RunView, moment: str | None) -> bool:
        return not self._parts[0].ready(run, moment)

    def settle(self, run: RunView, moment: str | None, fired: bool) -> None:
        self._parts[0].settle(run, moment, True)
