"""MovingAverage: exponential, with bias correction."""

from __future__ import annotations

from math import isfinite, nan


class MovingAverage:
    """An exponential moving average with bias correction. `weight` is that of the past, from 0 to below 1.

    For a value that is not finite, return NaN and ignore it.

    >>> average = MovingAverage(0.5)
    >>> [average.add(value) for value in (4.0, 8.0, nan, 8.0)]
    [4.0, 6.666666666666667, nan, 7.428571428571429]
    """

    __slots__ = ("_seen", "_total", "_weight")

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._total = 0.0
        self._seen = 0.0

    def add(self, value: float) -> float:
        """Add a value; return the average."""
        if not isfinite(value):
            return nan
        weight = self._weight
        self._total = weight * self._total + (1 - weight) * value
        self._seen = weight * self._seen + (1 - weight)  # 1 - weight**n, without rounding errors
        return self._total / self._seen
