"""FigureData: the description of a figure, independent of the backend that draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

X = Literal["step", "epoch", "time"]
SMALLEST, LARGEST = 1e-300, 1e300  # differences between values outside these limits underflow or overflow


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a curve and its position."""

    x: float
    y: float
    step: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A line in a panel. NaN values leave gaps in the line. `run` is the index of the run that the line belongs to.

    `style` is 0 for training, 1 for validation, and higher for other curves.

    `raw` contains the points before smoothing, or is None if the curve is not smoothed. `broken` contains the x
    coordinates of nonfinite values.
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
    """Curves on one pair of axes. `low` and `high` are the lowest and highest y value. All panels share the same x range."""

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
        """The range of the y axis, including a margin. If all values are equal, they are in the middle of the range."""
        if self.is_empty:
            return 0.0, 1.0
        if self.log:
            margin = (self.high / self.low) ** 0.06 if self.high > self.low else 1.25
            return self.low / margin, self.high * margin
        height, size = self.high - self.low, max(abs(self.high), abs(self.low))
        is_flat = height <= max(1e-12 * size, SMALLEST)
        margin = 0.06 * height if not is_flat else 0.5 * size if size > SMALLEST else 1.0
        return self.low - margin, self.high + margin


@dataclass(frozen=True, slots=True)
class FigureData:
    """A complete figure. `notes` tells the user what the figure omits, and why."""

    title: str
    runs: list[str]
    panels: list[Panel]
    x_label: str
    x_range: tuple[float, float]
    notes: list[str]
