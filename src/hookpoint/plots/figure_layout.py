"""Build a figure from the curves of one or more runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, isnan, nan
from typing import get_args

from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Mode
from hookpoint.core.text.terminal import few, printable
from hookpoint.plots._smoothing import smoothed, thinned
from hookpoint.plots.figure_data import LARGEST, SMALLEST, Best, Curve, FigureData, Panel, X
from hookpoint.plots.panels import Group, choose_panels, is_learning_rate, is_validation
from hookpoint.plots.series import Series

DECADE = 10.0
UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_PREFERENCE = {"epoch": 2, "value": 1}  # if a metric's series are equally long, the kind with the higher preference is plotted
MARKS = 64  # maximum number of marks for nonfinite values per curve; more would hide the curve

Axis = Callable[[Series], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A run to plot. Each key of `series` is a metric's name together with the kind of its values: "step", "epoch" or "value".

    `watched` contains the metrics that savers monitor. `modes` maps a metric to whether lower or higher is better. `epoch_ends`
    maps each epoch to its last step; by default, these steps are read from the series.
    """

    name: str
    series: Mapping[tuple[str, str], Series]
    about: str = ""
    watched: Collection[str] = ()
    modes: Mapping[str, Mode] = field(default_factory=dict)
    epoch_ends: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """Options for a plot. If `metrics` is empty, the most important metrics are plotted.

    `smooth` is the weight of past values in a moving average; 0 disables smoothing.
    """

    metrics: Sequence[str] = ()
    smooth: float = 0.0
    log: bool = False
    x: X = "step"

    def __post_init__(self) -> None:
        if not 0 <= self.smooth < 1:
            raise BadArgument(f"smooth must be >= 0 and < 1, got {self.smooth!r}.", write="smooth=0.9")
        if self.x not in get_args(X):
            raise BadArgument(f"unknown x axis {self.x!r}.", choose="'step', 'epoch', 'time'")


def figure_of(subjects: Sequence[Subject], options: PlotOptions, *, columns: int) -> FigureData:
    """Return a figure for these runs. Curves are reduced to a horizontal resolution of `columns`.

    Raises UnknownCurve if no run has a requested metric.
    """
    known = {name for subject in subjects for name, _ in subject.series}
    groups, left = choose_panels(known, options.metrics, {name for subject in subjects for name in subject.watched})
    unit = time_unit(subject.series.values() for subject in subjects)
    axes = [axis_along(options.x, subject.series, unit, subject.epoch_ends) for subject in subjects]
    notes = [f"left out: {few(left, 8)}; use -m NAME"] if left else []
    panels = [_panel(group, subjects, axes, options, columns, notes) for group in groups]
    xs = [x for panel in panels for curve in panel.curves for x in (*curve.xs, *curve.broken)]
    label = unit if options.x == "time" else options.x
    return FigureData(_title(subjects), _labels(subjects), panels, label, (min(xs, default=0.0), max(xs, default=1.0)), notes)


def _title(subjects: Sequence[Subject]) -> str:
    if len(subjects) != 1:
        return f"{len(subjects)} runs"
    about = f": {printable(subjects[0].about)}" if subjects[0].about else ""
    return f"{printable(subjects[0].name)}{about}"


def _labels(subjects: Sequence[Subject]) -> list[str]:
    names = [printable(subject.name) for subject in subjects]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


@dataclass(frozen=True, slots=True)
class _Line:
    """A run's series at full resolution. Values that cannot be plotted are NaN in `ys`, and `broken` contains their indices."""

    run: int
    name: str
    series: Series
    ys: Sequence[float]
    broken: tuple[int, ...]
    low: float
    high: float

    @classmethod
    def of(cls, run: int, name: str, series: Series) -> _Line:
        ys = [value if -LARGEST <= value <= LARGEST else nan for value in series.values]
        broken = tuple(index for index, y in enumerate(ys) if isnan(y))
        numbers = [y for y in ys if not isnan(y)]
        return cls(run, name, series, ys, broken, min(numbers, default=inf), max(numbers, default=-inf))

    def above_zero(self) -> _Line:
        """Return the line for a log scale, where values that are not above 0 become gaps."""
        if self.low > SMALLEST:
            return self
        ys = [y if y > SMALLEST else nan for y in self.ys]
        low = min((y for y in ys if y > SMALLEST), default=inf)
        return replace(self, ys=ys, low=low, high=self.high if self.high > SMALLEST else -inf)

    def count(self) -> int:
        """Return the number of values that can be plotted."""
        return sum(map(isfinite, self.ys))


def _panel(
    group: Group, subjects: Sequence[Subject], axes: Sequence[Axis], options: PlotOptions, columns: int, notes: list[str]
) -> Panel:
    lines = [
        _Line.of(number, name, series)
        for number, subject in enumerate(subjects)
        for name in group.names
        if (series := _longest(subject, name)) is not None
    ]
    low, high = min(line.low for line in lines), max(line.high for line in lines)
    log = options.log or (is_learning_rate(group.names[0]) and low > SMALLEST and low * DECADE <= high)
    if log and low <= SMALLEST:
        positive = [line.above_zero() for line in lines]
        hidden = sum(line.count() for line in lines) - sum(line.count() for line in positive)
        log = high > SMALLEST
        is_exact = all(line.series.count == len(line.ys) for line in lines)
        what = f"{hidden} values that are" if is_exact and hidden != 1 else "1 value that is" if is_exact else "values that are"
        message = f"{what} not above 0 cannot be shown on a log scale" if log else "no log scale: no value is above 0"
        notes.append(f"{printable(group.title)}: {message}")
        lines = positive if log else lines
        low = min(line.low for line in lines)
    styles = _styles(group.names)
    marked = {name for name in group.names if is_validation(name)} or set(group.names)
    curves = []
    for line in lines:
        mode = subjects[line.run].modes.get(line.name) if line.name in marked else None
        weight = 0.0 if is_learning_rate(line.name) else options.smooth
        curves.append(_curve(line, styles[line.name], axes[line.run], mode, weight, columns, log))
    return Panel(printable(group.title), tuple(map(printable, group.names)), curves, log, low, high)


def _curve(line: _Line, style: int, axis: Axis, mode: Mode | None, weight: float, columns: int, log: bool) -> Curve:
    xs = axis(line.series)
    shown = thinned(xs, line.ys, columns)
    raw = None
    if weight and len(xs) > 1:
        average = line.series.smoothed
        ys = smoothed(line.ys, weight) if average is None else [y if y > SMALLEST or not log else nan for y in average.values]
        raw, shown = shown, thinned(xs if average is None else axis(average), ys, columns)
    broken = tuple(xs[index] for index in line.broken[:: ceil(len(line.broken) / MARKS) or 1])
    return Curve(line.run, printable(line.name), style, *shown, raw, broken, _best(line, xs, mode))


def _best(line: _Line, xs: Sequence[float], mode: Mode | None) -> Best | None:
    if mode is None or len(line.ys) < 2 or line.low > line.high:
        return None
    value = line.low if mode == "min" else line.high
    index = line.ys.index(value)
    return Best(xs[index], value, line.series.steps[index])


def _longest(subject: Subject, name: str) -> Series | None:
    """Return a metric's longest series: values per log step show more detail than values per epoch."""
    candidates = [series for (metric, _), series in subject.series.items() if metric == name and len(series.values)]
    return max(candidates, key=lambda series: (series.count, _PREFERENCE.get(series.at, 0)), default=None)


def _styles(names: Collection[str]) -> dict[str, int]:
    styles: dict[str, int] = {}
    for name in names:
        first = 1 if is_validation(name) else 0
        styles[name] = first if first not in styles.values() else 2 + sum(style > 1 for style in styles.values()) % 2
    return styles


# The x axis: steps, epochs or time


def time_unit(runs: Iterable[Iterable[Series]]) -> str:
    """Return the largest unit of time that fits into the longest run at least three times, or seconds if no unit does."""
    longest = max((last - first for run in runs for first, last in [_span(run)]), default=0.0)
    return next((unit for unit in reversed(UNITS) if longest >= 3 * UNITS[unit]), "seconds")


def axis_along(x: X, series: Mapping[tuple[str, str], Series], unit: str, epoch_ends: Mapping[int, int] | None = None) -> Axis:
    """Return a function that computes the x coordinates of a series.

    Times are relative to the first record. Epochs are fractional.
    """
    if x == "step":
        return lambda curve: curve.steps
    if x == "time":
        begin, _ = _span(series.values())
        return lambda curve: [(time - begin) / UNITS[unit] for time in curve.times]
    position = _Epochs(series.values(), epoch_ends)
    return lambda curve: [*map(position, curve.steps, curve.epochs)]


def _span(run: Iterable[Series]) -> tuple[float, float]:
    times = [time for series in run if len(series.times) for time in (series.times[0], series.times[-1])]
    return min(times, default=0.0), max(times, default=0.0)


class _Epochs:
    """Convert steps to fractional epochs. An unfinished last epoch is assumed to be as long as the one before it."""

    def __init__(self, run: Iterable[Series], ends: Mapping[int, int] | None) -> None:
        curves = list(run)
        self._ends: dict[int, int] = dict(ends or {})
        for curve in curves if ends is None else ():
            for step, epoch in zip(curve.steps, curve.epochs, strict=True):
                if step > self._ends.get(epoch, 0):
                    self._ends[epoch] = step
        last = max(self._ends, default=0)
        is_complete = any(epoch == last for curve in curves if curve.at == "epoch" for epoch in curve.epochs[-1:])
        if last > 1 and not is_complete:
            before = self._ends.get(last - 1, 0)
            self._ends[last] = max(self._ends[last], 2 * before - self._ends.get(last - 2, 0))

    def __call__(self, step: int, epoch: int) -> float:
        if epoch < 1:
            return 0.0
        begin, end = self._ends.get(epoch - 1, 0), self._ends.get(epoch, 0)
        return epoch - 1 + (step - begin) / (end - begin) if end > begin else float(epoch)
