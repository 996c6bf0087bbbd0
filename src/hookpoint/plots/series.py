"""Series: the values of a metric. Long series store only some of the values."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import isfinite, nan
from typing import Any, NamedTuple

from hookpoint.plots._smoothing import MovingAverage
from hookpoint.plots.figure_data import LARGEST, SMALLEST

BUCKETS = 2_048
MIN_BUCKETS = 16
FIRST_WIDTH = 16  # values per bucket
RAW = 2  # new values are put into buckets as soon as there are RAW * (maximum number of buckets) of them
POINTS = {"steps": "q", "epochs": "q", "times": "d", "values": "d", "offsets": "q"}  # arrays with one item per stored value
SUMMARIES = {"ends": "q", "sizes": "q", "finite": "q", "means": "d"}  # arrays with one item per bucket


class Bucket(NamedTuple):
    """A summary of consecutive values of a series.

    `low`, `high` and `mean` are computed from the finite values; they are NaN if there are none. Steps may
    decrease where a resumed run appended to the file, so `first_step` is the lowest step and `last_step` the highest. `time`
    and `begin` are the time and the byte offset of the first record. `size` is the number of values, and `finite` is the
    number of finite values.
    """

    first_step: int
    last_step: int
    time: float
    low: float
    high: float
    mean: float
    finite: int
    size: int
    begin: int


class Series:
    """The values of one metric, in file order. `at` is "step", "epoch" or "value", as in JSONWriter.

    A short series stores all values. In a long series, consecutive values share a bucket. A bucket stores the first value, the
    last, the lowest, the highest, the lowest above 0, the first nonfinite value, and the values at the lowest and highest step.
    If there are more than `buckets` buckets, neighbouring buckets are merged. Memory is therefore bounded, and extremes are
    kept. `count` also counts the values that are not stored. `offsets` contains the byte offset of each stored value's record.

    `smooth` is the weight of past values in a moving average. `smoothed` is the moving average of all values, stored in the
    same way. It is None as long as the series stores all values.

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
        self.offsets = array("q")
        self._ends = array("q")  # the index at which each bucket ends; values after the last end are not in a bucket yet
        self._sizes = array("q")
        self._finite = array("q")
        self._means = array("d")
        self._left_out = 0
        self._width = FIRST_WIDTH
        self._average = MovingAverage(smooth)
        self._averages = Series(name, at, buckets=buckets) if smooth else None
        self.limit(buckets)

    @property
    def count(self) -> int:
        """The number of values, including those that are not stored."""
        return self._left_out + len(self.values)

    @property
    def smoothed(self) -> Series | None:
        """The moving average, or None if the series stores all values."""
        return self._averages if self._left_out else None

    def add(self, step: int, epoch: int, time: float, value: float, offset: int = 0) -> None:
        self.extend((step,), (epoch,), (time,), (value,), (offset,))

    def extend(
        self,
        steps: Sequence[int],
        epochs: Sequence[int],
        times: Sequence[float],
        values: Sequence[float],
        offsets: Sequence[int],
    ) -> None:
        """Add values. Offsets must increase."""
        self.steps.extend(steps)
        self.epochs.extend(epochs)
        self.times.extend(times)
        self.values.extend(values)
        self.offsets.extend(offsets)
        if self._averages is not None:
            averages = [self._average.add(value if -LARGEST <= value <= LARGEST else nan) for value in values]
            self._averages.extend(steps, epochs, times, averages, offsets)
        if len(self.values) >= self._most:
            self._fold()

    def limit(self, buckets: int) -> None:
        """Set the maximum number of buckets. Existing buckets are merged if necessary."""
        self._buckets = max(MIN_BUCKETS, buckets)
        self._most = self._end + RAW * self._buckets  # number of stored values that triggers `_fold`
        if len(self._ends) > self._buckets or len(self.values) >= self._most:
            self._fold()
        if self._averages is not None:
            self._averages.limit(buckets)

    def buckets(self) -> Iterator[Bucket]:
        """Yield the buckets in order. Each value that is not in a bucket yet is yielded as its own bucket."""
        steps, times, values, offsets = self.steps, self.times, self.values, self.offsets
        begin = 0
        for end, size, finite, mean in zip(self._ends, self._sizes, self._finite, self._means, strict=True):
            part, at = values[begin:end], steps[begin:end]
            if finite < size:
                part = array("d", filter(isfinite, part)) or array("d", [nan])
            yield Bucket(min(at), max(at), times[begin], min(part), max(part), mean, finite, size, offsets[begin])
            begin = end
        for index in range(begin, len(values)):
            step, value = steps[index], values[index]
            number, finite = (value, 1) if isfinite(value) else (nan, 0)
            yield Bucket(step, step, times[index], number, number, number, finite, 1, offsets[index])

    def cut(self, offset: int) -> int:
        """Discard all records at or after a byte offset, and every bucket that contains such a record.

        Returns the offset from which the file must be read again.
        """
        assert self._averages is None, "a moving average cannot be rewound"
        keep = bisect_left(self.offsets, offset)
        if keep < self._end:
            buckets = bisect_right(self._ends, keep)
            begin = self._ends[buckets - 1] if buckets else 0
            offset, keep = min(offset, self.offsets[begin]), begin
            for summary in (self._ends, self._sizes, self._finite, self._means):
                del summary[buckets:]
        for points in (self.steps, self.epochs, self.times, self.values, self.offsets):
            del points[keep:]
        self._left_out = sum(self._sizes) - self._end
        self._most = self._end + RAW * self._buckets
        return offset

    def state(self) -> dict[str, Any]:
        """Return the arguments for `restored` as numbers, strings and arrays. The moving average is not included."""
        points = {name: getattr(self, name) for name in POINTS}
        summaries = {name: getattr(self, f"_{name}") for name in SUMMARIES}
        return {"name": self.name, "at": self.at, "width": self._width, "buckets": self._buckets, **points, **summaries}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Series:
        """Recreate a series from the result of `state`."""
        series = cls(state["name"], state["at"], buckets=state["buckets"])
        series.load(state)
        return series

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the values of this series with values that `Series.state()` has returned."""
        for name in POINTS:
            setattr(self, name, state[name])
        for name in SUMMARIES:
            setattr(self, f"_{name}", state[name])
        self._width = state["width"]
        self._left_out = sum(self._sizes) - self._end
        self.limit(state["buckets"])

    @property
    def _end(self) -> int:
        """The index at which the last bucket ends, or 0 if there are no buckets."""
        return self._ends[-1] if self._ends else 0

    def _fold(self) -> None:
        """Put new values into buckets. If there are too many buckets, merge neighbouring buckets."""
        ends, begin, end = self._ends, self._end, len(self.values)
        bounds = [begin]
        if ends and self._sizes[-1] < self._width and begin < end:  # the last bucket is not full
            full = min(end, begin + self._width - self._sizes[-1])
            ends.pop()
            bounds = [self._end, full]
            self._summarize(begin, full)
            self._merge_summaries(len(self._sizes) - 2)
        while bounds[-1] < end:
            bounds.append(min(end, bounds[-1] + self._width))
            self._summarize(*bounds[-2:])
        if len(bounds) > 1:
            self._keep(bounds)
        while len(ends) > self._buckets:
            self._width *= 2
            bounds = [0, *ends]
            del ends[:]
            self._merge_summaries(0)
            self._keep([*bounds[:-1:2], bounds[-1]])
        self._most = self._end + RAW * self._buckets

    def _keep(self, bounds: Sequence[int]) -> None:
        """Put the values into buckets, starting at index `bounds[0]`. A bucket extends from one bound to the next."""
        begin, before = bounds[0], len(self.values)
        buckets = [_indices_to_keep(self.values, self.steps, *pair) for pair in pairwise(bounds)]
        indices = [index for bucket in buckets for index in bucket]
        for integers in (self.steps, self.epochs, self.offsets):
            integers[begin:] = array("q", [integers[index] for index in indices])
        for floats in (self.times, self.values):
            floats[begin:] = array("d", [floats[index] for index in indices])
        self._ends.extend(accumulate(map(len, buckets[1:]), initial=begin + len(buckets[0])))
        self._left_out += before - len(self.values)

    def _summarize(self, begin: int, end: int) -> None:
        """Append a summary of the values from `begin` to `end`."""
        part: Sequence[float] = self.values[begin:end]
        total = sum(part)
        if not isfinite(total):
            part = list(filter(isfinite, part))
            total = sum(part)
        finite = len(part)
        mean = total / finite if isfinite(total) and finite else sum(value / finite for value in part) if finite else nan
        self._sizes.append(end - begin)
        self._finite.append(finite)
        self._means.append(mean)

    def _merge_summaries(self, begin: int) -> None:
        """Merge neighbouring summaries in pairs, starting at index `begin`. If their number is odd, the last one is kept."""
        rest = self._means[begin:], self._finite[begin:], self._sizes[begin:]
        if len(rest[0]) % 2:
            for summary in rest:
                summary.append(0)
        means, finite, sizes = rest
        self._means[begin:] = array(
            "d", [_mean(means[index : index + 2], finite[index : index + 2]) for index in range(0, len(means), 2)]
        )
        self._finite[begin:] = array("q", map(sum, zip(finite[::2], finite[1::2], strict=True)))
        self._sizes[begin:] = array("q", map(sum, zip(sizes[::2], sizes[1::2], strict=True)))


def _mean(means: Sequence[float], counts: Sequence[int]) -> float:
    """Return the mean of two means, weighted by their counts. No intermediate result overflows."""
    if not all(counts):
        return means[0] if counts[0] else means[1] if counts[1] else nan
    total = sum(counts)
    return means[0] * (counts[0] / total) + means[1] * (counts[1] / total)


def _indices_to_keep(values: array[float], steps: array[int], begin: int, end: int) -> list[int]:
    """Return the indices of the values that a bucket stores."""
    part = values[begin:end]
    low, high = min(part), max(part)
    if isfinite(sum(part)) and low >= -LARGEST and high <= LARGEST:
        kept = {begin, begin + part.index(low), begin + part.index(high), end - 1}
        if low <= SMALLEST < high:
            kept.add(begin + part.index(min(value for value in part if value > SMALLEST)))
    else:
        kept = {begin, end - 1, *_unusual_to_keep(values, begin, end)}
    at = steps[begin:end]
    first, last = min(at), max(at)
    if first != at[0] or last != at[-1]:
        kept |= {begin + at.index(first), begin + at.index(last)}
    return sorted(kept)


def _unusual_to_keep(values: array[float], begin: int, end: int) -> Iterator[int]:
    """Yield the indices of the values to store for a bucket that contains nonfinite values or values too large to plot."""
    inside = [index for index in range(begin, end) if -LARGEST <= values[index] <= LARGEST]
    finite = [index for index in range(begin, end) if isfinite(values[index])]
    yield from [index for index in range(begin, end) if not -LARGEST <= values[index] <= LARGEST][:1]
    yield from inside[:1] + inside[-1:]
    for indices in (inside, finite):
        if indices:
            yield min(indices, key=values.__getitem__)
            yield max(indices, key=values.__getitem__)
    above = [index for index in inside if values[index] > SMALLEST]
    if above:
        yield min(above, key=values.__getitem__)
