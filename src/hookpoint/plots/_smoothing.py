"""Smooth a curve, or reduce its number of points without losing extremes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite, nan
from operator import gt


class MovingAverage:
    """An exponential moving average with bias correction. `weight` is the weight of past values, at least 0 and less than 1.

    For a nonfinite value, `add` returns NaN and leaves the average unchanged.

    >>> average = MovingAverage(0.5)
    >>> [average.add(value) for value in (4.0, 8.0, nan, 8.0)]
    [4.0, 6.666666666666667, nan, 7.428571428571429]
    """

    __slots__ = ("_total", "_weight", "_weights")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._total = 0.0
        self._weights = 0.0

    def add(self, value: float) -> float:
        """Add a value and return the updated average."""
        if not isfinite(value):
            return nan
        weight = self._weight
        self._total = weight * self._total + (1 - weight) * value
        self._weights = weight * self._weights + (1 - weight)  # equals 1 - weight**n, but without its rounding error
        return self._total / self._weights


def smoothed(values: Iterable[float], weight: float) -> list[float]:
    """Return the exponential moving average of values.

    `weight` is the weight of past values; 0 returns the values unchanged.
    """
    average = MovingAverage(weight)
    return [average.add(value) for value in values]


def thinned(xs: Sequence[float], ys: Sequence[float], columns: int) -> tuple[list[float], list[float]]:
    """Reduce a curve to at most four points per column: the first, the lowest, the highest and the last.

    The x axis is divided into `columns` columns, such as the pixel columns of a plot. Points keep their order. The result looks
    the same as a curve through all points. A column without finite values keeps one of its values, which is drawn as a gap.
    Short curves are returned unchanged.

    >>> thinned(range(1000), [0.0] * 500 + [9.0] + [0.0] * 499, 2)
    ([0, 499, 500, 501, 999], [0.0, 0.0, 9.0, 0.0, 0.0])
    """
    if len(xs) <= 4 * columns:
        return list(xs), list(ys)
    ends = [0, *dict.fromkeys(_ends(xs, columns))]
    kept = [index for begin, end in pairwise(ends) if end > begin for index in _indices_to_keep(ys, begin, end)]
    return [xs[index] for index in kept], [ys[index] for index in kept]


def _ends(xs: Sequence[float], columns: int) -> Iterable[int]:
    """Yield the index at which each column ends.

    All columns are equally wide. If the x values are not sorted, all columns have the same number of points instead.
    """
    first, last = xs[0], xs[-1]
    if last <= first or any(map(gt, xs, xs[1:])):  # times decrease if the clock was set back
        yield from (len(xs) * (column + 1) // columns for column in range(columns))
        return
    begin = 0
    for column in range(1, columns):
        begin = bisect_right(xs, first + (last - first) * column / columns, begin)
        yield begin
    yield len(xs)


def _indices_to_keep(ys: Sequence[float], begin: int, end: int) -> list[int]:
    finite = [index for index in range(begin, end) if isfinite(ys[index])]
    if not finite:
        return [begin]
    return sorted({finite[0], min(finite, key=ys.__getitem__), max(finite, key=ys.__getitem__), finite[-1]})
