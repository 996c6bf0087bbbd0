"""FigureData: what is drawn of some runs, ready for a picture or a terminal. Nothing here draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

X = Literal["step", "epoch", "time"]
LEAST, MOST = 1e-300, 1e300  # below the one and beyond the other, differences are no numbers any more


class Series(Protocol):
    """The values of one metric. `at` is "step", "epoch" or "value", as in scalars.jsonl. Of many, some may be left out."""

    @property
    def name(self) -> str: ...
    @property
    def at(self) -> str: ...
    @property
    def count(self) -> int: ...  # of all values, also of those that are left out
    @property
    def steps(self) -> Sequence[int]: ...
    @property
    def epochs(self) -> Sequence[int]: ...
    @property
    def times(self) -> Sequence[float]: ...
    @property
    def values(self) -> Sequence[float]: ...
    @property
    def smoothed(self) -> Series | None: ...  # the moving average of all values, where some are left out


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a curve, and where it is."""

    x: float
    y: float
    step: int


@dataclass(frozen=True, slots=True)
class Curve:
    """One line. NaN is a gap in it. `run` counts runs from 0; `style` is 0 for training, 1 for validation, more for others.

    `raw` is the curve before it was smoothed, None where it was not; `broken` is where values were not finite.
    """

    run: int
    name: str
    style: int
    xs: list[float]
    ys: list[float]
    raw: tuple[list[float], list[float]] | None = None
    broken: tuple[float, ...] = ()
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one pair of axes. The range of x is that of all panels; `low` and `high` are those of what can be shown."""

    title: str
    names: tuple[str, ...]
    curves: list[Curve]
    log: bool
    low: float
    high: float

    @property
    def is_empty(self) -> bool:
        return self.low > self.high

    @property
    def limits(self) -> tuple[float, float]:
        """The range of the y axis, with some room; a single value is in the middle of it."""
        if self.is_empty:
            return 0.0, 1.0
        if self.log:
            room = (self.high / self.low) ** 0.06 if self.high > self.low else 1.25
            return self.low / room, self.high * room
        spread, size = self.high - self.low, max(abs(self.high), abs(self.low))
        if spread <= max(1e-12 * size, LEAST):
            room = 0.5 * size if size > LEAST else 1.0
        else:
            room = 0.06 * spread
        return self.low - room, self.high + room


@dataclass(frozen=True, slots=True)
class FigureData:
    """All that is drawn. `notes` are lines to be said beside it: what was left out, and why."""

    title: str
    runs: list[str]
    panels: list[Panel]
    x_label: str
    x_range: tuple[float, float]
    notes: list[str]
