"""MovingAverage: the exponential one, corrected for its start."""

from __future__ import annotations

from math import isfinite, nan


class MovingAverage:
    """An exponential moving average: the first value stands for itself. `weight` is that of the past, from 0 up to 1.

    A value that is not finite has no average and leaves later ones as they are.

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
        """Take in a value; return the average."""
        if not isfinite(value):
            return nan
        weight = self._weight
        self._total = weight * self._total + (1 - weight) * value
        self._seen = weight * self._seen + (1 - weight)  # 1 - weight**n, without the loss of digits
        return self._total / self._seen
