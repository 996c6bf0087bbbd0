"""Series: the values of a metric, thinned out if there are many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite, nan

from hookpoint.plots._smoothing import MovingAverage
from hookpoint.plots.figure import LARGEST, SMALLEST

BUCKETS = 2_048
MIN_BUCKETS = 16
FIRST_WIDTH = 16  # values per bucket
RAW = 2  # values per bucket that may wait outside of buckets


class Series:
    """The values of one metric in the order of the file. `at` is "step", "epoch" or "value", as in JSONWriter.

    A short series stores all values. In a long series, consecutive values share a bucket. A bucket stores the first, last,
    lowest and highest value, the lowest value above 0 and the first non-finite value. If there are more than `buckets` buckets,
    neighbours are merged, so memory is bounded and no extreme is lost. `count` includes the values left out.

    `smooth` is the weight of past values in a moving average of all values. The average is thinned out in the same way.
    `smoothed` is this average, or None as long as no value is left out.

    >>> series = Series("loss", "step", buckets=16)
    >>> for step in range(100_000):
    ...     series.add(step, 1, 0.0, 9.0 if step == 77_777 else 0.5)
    >>> series.count, len(series.values) < 200, series.steps[series.values.index(9.0)]
    (100000, True, 77777)
    """

    def __init__(self, name: str, at: str, *, buckets: int = BUCKETS, smooth: float = 0.0) -> None:
        self.name = name
        self.at = at
        self.steps = array("q")
        self.epochs = array("q")
        self.times = array("d")
        self.values = array("d")
        self._left_out = 0
        self._ends = array("q")  # end of each bucket in the arrays; later values are not in a bucket yet
        self._width = FIRST_WIDTH
        self._last_width = 0  # values of the last bucket
        self._average = MovingAverage(smooth)
        self._averages = Series(name, at, buckets=buckets) if smooth else None
        self.limit(buckets)

    @property
    def count(self) -> int:
        """Number of values, including those left out."""
        return self._left_out + len(self.values)

    @property
    def smoothed(self) -> Series | None:
        """The moving average, if values were left out."""
        return self._averages if self._left_out else None

    def add(self, step: int, epoch: int, time: float, value: float) -> None:
        values = self.values
        self.steps.append(step)
        self.epochs.append(epoch)
        self.times.append(time)
        values.append(value)
        if self._averages is not None:
            self._averages.add(step, epoch, time, self._average.add(value if -LARGEST <= value <= LARGEST else nan))
        if len(values) >= self._most:
            self._fold()

    def limit(self, buckets: int) -> None:
        """Limit the number of buckets from now on. Existing buckets are merged if necessary."""
        self._buckets = max(MIN_BUCKETS, buckets)
        self._most = (self._ends[-1] if self._ends else 0) + RAW * self._buckets  # values before the next fold
        if len(self._ends) > self._buckets or len(self.values) >= self._most:
            self._fold()
        if self._averages is not None:
            self._averages.limit(buckets)

    def _fold(self) -> None:
        """Put new values into buckets; merge neighbours if there are too many."""
        ends, end = self._ends, len(self.values)
        bounds = [ends[-1] if ends else 0]
        if ends and self._last_width < self._width:  # the last bucket is not full
            full = min(end, bounds[0] + self._width - self._last_width)
            self._last_width += full - ends.pop()
            bounds = [ends[-1] if ends else 0, full]
        while bounds[-1] < end:
            self._last_width = min(self._width, end - bounds[-1])
            bounds.append(bounds[-1] + self._last_width)
        self._keep(bounds)
        while len(self._ends) > self._buckets:
            self._last_width += 0 if len(self._ends) % 2 else self._width
            self._width *= 2
            bounds = [0, *self._ends]
            del self._ends[:]
            self._keep([*bounds[:-1:2], bounds[-1]])
        self._most = self._ends[-1] + RAW * self._buckets

    def _keep(self, bounds: Sequence[int]) -> None:
        """Create buckets between these bounds, from the first bound to the end of the arrays."""
        begin, before = bounds[0], len(self.values)
        buckets = [_indices_to_keep(self.values, *pair) for pair in pairwise(bounds)]
        indices = [index for bucket in buckets for index in bucket]
        for integers in (self.steps, self.epochs):
            integers[begin:] = array("q", [integers[index] for index in indices])
        for floats in (self.times, self.values):
            floats[begin:] = array("d", [floats[index] for index in indices])
        self._ends.extend(accumulate(map(len, buckets[1:]), initial=begin + len(buckets[0])))
        self._left_out += before - len(self.values)


def _indices_to_keep(values: array[float], begin: int, end: int) -> list[int]:
    """Return the indices of the values that a bucket stores."""
    part = values[begin:end]
    low, high = min(part), max(part)
    if isfinite(sum(part)) and low >= -LARGEST and high <= LARGEST:
        kept = {begin, begin + part.index(low), begin + part.index(high), end - 1}
        if low <= SMALLEST < high:
            kept.add(begin + part.index(min(value for value in part if value > SMALLEST)))
        return sorted(kept)
    numbers = [index for index in range(begin, end) if -LARGEST <= values[index] <= LARGEST]
    others = [index for index in range(begin, end) if not -LARGEST <= values[index] <= LARGEST]
    kept = {begin, end - 1, *others[:1]}
    if numbers:
        kept |= {numbers[0], min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__), numbers[-1]}
        above = [index for index in numbers if values[index] > SMALLEST]
        kept |= {min(above, key=values.__getitem__)} if above else set()
    return sorted(kept)
