"""The x axis: steps, epochs or time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookpoint.plots.figure import X
    from hookpoint.plots.series import Series

Axis = Callable[["Series"], Sequence[float]]


UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}


def time_unit(runs: Iterable[Iterable[Series]]) -> str:
    """Return the largest unit of which the longest run has at least three, or else seconds."""
    longest = max((last - first for run in runs for first, last in [_span(run)]), default=0.0)
    return next((unit for unit in reversed(UNITS) if longest >= 3 * UNITS[unit]), "seconds")


def axis_along(x: X, series: Mapping[tuple[str, str], Series], unit: str, epoch_ends: Mapping[int, int] | None = None) -> Axis:
    """Return a function that computes the x of a series. Time starts at the first record; epochs are fractional."""
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
    """The position of a step within its epoch. A running epoch is assumed to be as long as the one before."""

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
