"""When: a schedule, which is independent of the action that it triggers.

`Every`, `At` and `Once` are ticks: they are due at the moment when a clock reaches a value. `After`, `Before`, `Between` and
`If` are levels: they are true or false at any time. `&`, `|` and `~` combine schedules. A When has no state, so several
callbacks can share it. `arm()` returns an object that tracks when the schedule is due.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hookpoint.core.errors import BadSchedule, listed
from hookpoint.core.schedule.armed_schedule import ArmedAll, ArmedAny, ArmedIf, ArmedLevel, ArmedNot, ArmedSchedule, ArmedTick
from hookpoint.core.text.spelling import near_miss

TIME = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
COUNTS = ("steps", "iterations", "epochs", "samples")
CLOCKS = (*COUNTS, *TIME)

Amount = int | float


class When(ABC):
    """The base class of all schedules. Combine them: `Every(steps=100) & After(epochs=1) | Once(minutes=5)`."""

    ticks_on: frozenset[str] = frozenset()
    levels_on: frozenset[str] = frozenset()
    negated_ticks_on: frozenset[str] = frozenset()

    @abstractmethod
    def arm(self) -> ArmedSchedule:
        """Return a new armed schedule, which tracks when this schedule is due."""

    def moments(self) -> frozenset[str]:
        """Return when a trigger checks this schedule: at the end of iterations ("iter"), of epochs ("epoch"), or of both."""
        return frozenset(map(_moment, self.ticks_on or self.levels_on or {"epochs"}))

    @property
    def same_on_all_ranks(self) -> bool:
        """Whether the schedule is always due at the same moment on all ranks.

        True for schedules that use a clock, False for `If`. A combined schedule returns True if all its parts do.
        """
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __and__(self, other: When) -> When:
        return AllOf(self, other)

    def __or__(self, other: When) -> When:
        return AnyOf(self, other)

    def __invert__(self) -> When:
        return NotOf(self)

    def __bool__(self) -> bool:
        raise BadSchedule("a schedule has no truth value.", combine="schedules with &, | and ~ instead of and, or, not")


def _moment(clock: str) -> str:
    return "epoch" if clock == "epochs" else "iter"


class OnClock(When):
    """A schedule on one clock. The base class of Every, At, Once, After, Before and Between."""

    def __init__(self, clocks: dict[str, Any], *, may_be_bare: bool = False) -> None:
        name = type(self).__name__
        if len(clocks) != 1 and not (may_be_bare and not clocks):
            raise BadSchedule(
                f"{name} takes one clock, got {listed(clocks)}.",
                clocks=", ".join(CLOCKS),
                combine=f"schedules with |, as in {name}(steps=100) | {name}(epochs=1)",
            )
        self.clocks = clocks
        self.clock: str = next(iter(clocks), "iterations")
        self.amount: Any = clocks.get(self.clock, 0)
        if self.clock not in CLOCKS:
            meant = near_miss(self.clock, CLOCKS)
            raise BadSchedule(
                f"{name}: unknown clock '{self.clock}'.",
                clocks=", ".join(CLOCKS),
                **({"write": f"{name}({meant}={self.amount!r})"} if meant else {}),
            )

    def checked(self, amount: Any, *, minimum: Amount = 0) -> Amount:
        """Return the amount, with minutes and hours converted to seconds. Raise BadSchedule if the amount is not valid."""
        timed = self.clock in TIME
        right_type = isinstance(amount, int | float if timed else int) and not isinstance(amount, bool)
        too_small = right_type and ((amount <= 0 if minimum else amount < 0) if timed else amount < minimum)
        if not right_type or not math.isfinite(amount) or too_small:
            kind = "a number > 0" if timed and minimum else "a number >= 0" if timed else f"an integer >= {minimum}"
            raise BadSchedule(f"{self!r}: {self.clock} must be {kind}, got {amount!r}.")
        return amount * TIME[self.clock] if timed else int(amount)

    @property
    def same_on_all_ranks(self) -> bool:
        return True

    @property
    def counted(self) -> str:
        """The counter that the clock uses. All times are counted in seconds."""
        return "seconds" if self.clock in TIME else self.clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{clock}={amount!r}' for clock, amount in self.clocks.items())})"


class Every(OnClock):
    """Due at every multiple of a period: `Every(steps=500)` is due at steps 500, 1000 and so on.

    A period of time, as in `Every(minutes=10)`, is measured in training time. A resumed run continues counting.
    """

    def __init__(self, **clock: Amount) -> None:
        super().__init__(clock)
        self._period = self.checked(self.amount, minimum=1)
        self.ticks_on = frozenset([self.counted])

    def arm(self) -> ArmedSchedule:
        period = self._period
        return ArmedTick(self.counted, period, lambda now: _next_multiple(period, now))


def _next_multiple(period: Amount, now: Amount) -> Amount:
    following = (now // period + 1) * period
    return following if following > now else following + period  # 0.5 // 0.1 is 4.0 instead of 5.0, due to rounding


class At(OnClock):
    """Due at the given values: `At(epochs=[1, 5])`, `At(steps=1000)`."""

    def __init__(self, **clock: Amount | Iterable[Amount]) -> None:
        super().__init__(clock)
        if isinstance(self.amount, Iterator):  # such as a generator, whose text would not show its values
            self.amount = self.clocks[self.clock] = list(self.amount)
        is_list = isinstance(self.amount, Iterable) and not isinstance(self.amount, str)
        self._values = sorted({self.checked(value) for value in (self.amount if is_list else [self.amount])})
        self.ticks_on = frozenset([self.counted])

    def arm(self) -> ArmedSchedule:
        values = self._values
        first = values[0] if values else math.inf
        return ArmedTick(self.counted, first, lambda now: next((value for value in values if value > now), math.inf))


class Once(OnClock):
    """Due once: `Once()` at the first opportunity, `Once(steps=1000)` at the first opportunity from step 1000 on."""

    def __init__(self, **clock: Amount) -> None:
        super().__init__(clock, may_be_bare=True)
        self._value = self.checked(self.amount)
        self.ticks_on = frozenset([self.counted] if clock else [])

    def arm(self) -> ArmedSchedule:
        armed = ArmedTick(self.counted, self._value, lambda now: math.inf, stays=True, anywhere=not self.clocks)
        armed.when = repr(self)
        return armed

    def moments(self) -> frozenset[str]:
        return super().moments() if self.clocks else frozenset(["iter", "epoch"])


class After(OnClock):
    """True from a given amount on: `After(steps=1000)` from step 1000 on, `After(epochs=2)` from the end of epoch 2 on."""

    def __init__(self, **clock: Amount) -> None:
        super().__init__(clock)
        self._value = self.checked(self.amount)
        self.levels_on = frozenset([self.counted])

    def arm(self) -> ArmedSchedule:
        return ArmedLevel(self.counted, self._value, math.inf)


class Before(OnClock):
    """True until a given amount is reached: the opposite of `After`."""

    def __init__(self, **clock: Amount) -> None:
        super().__init__(clock)
        self._value = self.checked(self.amount)
        self.levels_on = frozenset([self.counted])

    def arm(self) -> ArmedSchedule:
        return ArmedLevel(self.counted, -math.inf, self._value)


class Between(OnClock):
    """True from the first value up to, but not including, the second: `Between(steps=(100, 200))`."""

    def __init__(self, **clock: tuple[Amount, Amount]) -> None:
        super().__init__(clock)
        if not isinstance(self.amount, tuple | list) or len(self.amount) != 2:
            raise BadSchedule(f"{self!r}: expected two values.", write=f"Between({self.clock}=(100, 200))")
        self._low, self._high = (self.checked(value) for value in self.amount)
        if self._low >= self._high:
            raise BadSchedule(f"{self!r}: the first value must be below the second.")
        self.levels_on = frozenset([self.counted])

    def arm(self) -> ArmedSchedule:
        return ArmedLevel(self.counted, self._low, self._high)


class If(When):
    """True when a function of the run returns a true value: `If(lambda run: run.metrics["loss"] < 1)`."""

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        if not callable(predicate):
            raise BadSchedule(f"If: expected a function that takes the run, got {predicate!r}.", write="If(lambda run: ...)")
        self._predicate = predicate

    def arm(self) -> ArmedSchedule:
        return ArmedIf(self._predicate)

    def __repr__(self) -> str:
        return f"If({getattr(self._predicate, '__name__', type(self._predicate).__name__)})"


class Combined(When):
    """The base class of schedules combined with `&`, `|` and `~`."""

    sign = ""

    def __init__(self, *parts: When) -> None:
        for part in parts:
            if not isinstance(part, When):
                raise BadSchedule(f"{part!r} is not a schedule.", wrap="a function with If(...)")
        self.parts = parts
        self.ticks_on = frozenset().union(*(part.ticks_on for part in parts))
        self.levels_on = frozenset().union(*(part.levels_on for part in parts))
        self.negated_ticks_on = frozenset().union(*(part.negated_ticks_on for part in parts))

    @property
    def same_on_all_ranks(self) -> bool:
        return all(part.same_on_all_ranks for part in self.parts)

    def __repr__(self) -> str:
        return f"({self.sign.join(map(repr, self.parts))})"


class AllOf(Combined):
    """Due when all parts are due. Two ticks must use the same clock, because they would otherwise rarely coincide.

    A tick on epochs cannot be combined with a negated tick on another clock, because they are never checked at the same time.
    """

    sign = " & "

    def __init__(self, *parts: When) -> None:
        super().__init__(*parts)
        if len(self.ticks_on) > 1 and sum(bool(part.ticks_on) for part in parts) > 1:
            raise BadSchedule(
                f"{self!r}: ticks on {listed(self.ticks_on)} rarely coincide.",
                combine="them with |",
                use="a level for one of them, as in Every(steps=100) & After(epochs=1)",
            )
        if self.ticks_on and not set(map(_moment, self.negated_ticks_on)) <= set(map(_moment, self.ticks_on)):
            negated, ticks = listed(self.negated_ticks_on), listed(self.ticks_on)
            raise BadSchedule(
                f"{self!r}: ticks on {negated} and ticks on {ticks} are not checked at the same time.",
                use="a function instead of the negated tick, as in Every(epochs=1) & If(lambda run: run.step % 20)",
            )

    def arm(self) -> ArmedSchedule:
        return ArmedAll([part.arm() for part in self.parts])


class AnyOf(Combined):
    """Due when any part is due."""

    sign = " | "

    def arm(self) -> ArmedSchedule:
        return ArmedAny([part.arm() for part in self.parts])

    def moments(self) -> frozenset[str]:
        return frozenset().union(*(part.moments() for part in self.parts))


class NotOf(Combined):
    """Due when the negated schedule is not due.

    `~After(steps=100)` is due before step 100, and `~Every(steps=5)` is due whenever `Every(steps=5)` is not.
    """

    def __init__(self, part: When) -> None:
        super().__init__(part)
        self.negated_ticks_on |= self.ticks_on
        self.levels_on, self.ticks_on = self.levels_on | self.ticks_on, frozenset()

    def arm(self) -> ArmedSchedule:
        return ArmedNot(self.parts[0].arm())

    def __repr__(self) -> str:
        return f"~{self.parts[0]!r}"


def armed_with_text(schedule: When) -> ArmedSchedule:
    """Arm a schedule and store its text. A resumed run compares the text to detect a changed schedule.

    The text contains no memory addresses, because they differ between processes.
    """
    armed = schedule.arm()
    armed.when = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(schedule))
    return armed
