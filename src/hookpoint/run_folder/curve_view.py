"""Views of a curve: reduce a series, or a range of its steps, to as many buckets as a chart has pixels."""

from __future__ import annotations

import math
import os
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from operator import le
from typing import Any

from hookpoint.plots.series import Bucket
from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder.curve_columns import Column, Key, columns_of, joined
from hookpoint.run_folder.curve_reader import CurveReader
from hookpoint.run_folder.json_records import tables_of

MAX_BYTES = 16 * 2**20  # maximum number of bytes to read from the file again for a range of steps
PLACES = 300  # number of places that a preview samples
PLACE_BYTES = 8_192  # number of bytes that a preview reads at each place


@dataclass(frozen=True, slots=True)
class CurveView:
    """A curve's buckets, in order. If `exact` is True, their extremes are the extremes of all values in the range."""

    buckets: list[Bucket]
    exact: bool


def view_of(reader: CurveReader, key: Key, *, low: float = -math.inf, high: float = math.inf, pixels: int = 1_000) -> CurveView:
    """Return the view of one curve. See `views_of`. Raises KeyError if there is no such curve."""
    return views_of(reader, [key], low=low, high=high, pixels=pixels)[key]


def views_of(
    reader: CurveReader, keys: Iterable[Key], *, low: float = -math.inf, high: float = math.inf, pixels: int = 1_000
) -> dict[Key, CurveView]:
    """Return a view of each curve: its values at steps from `low` to `high`, merged into at most `pixels` buckets per curve.

    A narrow range is read from the file again, because the series may not store all values. The same applies to the buckets at
    the ends of a wide range. If more than 16 MiB would have to be read again for a curve, its view is not exact. The file is
    read once for all curves.

    Raises KeyError if there is no such curve.
    """
    if low == -math.inf and high == math.inf:
        return {key: CurveView(thinned(list(reader.curves[key].buckets()), pixels), exact=True) for key in keys}
    ranges = {key: _Range.of(reader, key, low, high) for key in keys}
    spans = sorted(span for one in ranges.values() for span in one.again)
    try:
        columns = _read_again(reader.path, {name for name, _ in ranges}, spans)
    except OSError:  # the file was deleted
        return {key: CurveView(thinned(one.buckets, pixels), exact=one.is_known) for key, one in ranges.items()}
    return {key: one.view(columns.get(key), low, high, pixels) for key, one in ranges.items()}


@dataclass(frozen=True, slots=True)
class _Range:
    """The buckets of a curve in a range of steps, and the byte ranges of the file to read again, in file order."""

    buckets: list[Bucket]
    again: list[tuple[int, int]]
    is_too_long: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the buckets are exact without reading values from the file again."""
        return not self.again and not self.is_too_long

    @classmethod
    def of(cls, reader: CurveReader, key: Key, low: float, high: float) -> _Range:
        buckets = list(reader.curves[key].buckets())
        ends = [bucket.begin for bucket in buckets[1:]] + [reader.position]
        inside = [(one, end) for one, end in zip(buckets, ends, strict=True) if one.first_step <= high and one.last_step >= low]
        unsure = [(one, end) for one, end in inside if one.size > 1]
        if unsure and _size(inside) <= MAX_BYTES:
            unsure = inside  # include buckets with one value: one long span is faster to read than many short spans
        elif _size(unsure) > MAX_BYTES:
            unsure = [(one, end) for one, end in unsure if one.first_step < low or one.last_step > high]
        kept = [one for one, _ in inside]
        if _size(unsure) > MAX_BYTES:
            return cls(kept, [], is_too_long=True)
        return cls(kept, [(one.begin, end) for one, end in unsure])

    def view(self, column: Column | None, low: float, high: float, pixels: int) -> CurveView:
        """Return the view. Buckets that were read again are replaced by the values in `column`."""
        if not self.again or column is None:
            return CurveView(thinned(self.buckets, pixels), exact=self.is_known)
        if len(self.again) == len(self.buckets):
            parts = [column.part(*_indices(column, begin, end)) for begin, end in _merged_spans(self.again)]
            return CurveView(thinned_values(joined(parts).between(low, high), pixels), exact=True)
        ends = dict(self.again)
        kept: list[Bucket] = []
        for one in self.buckets:
            if one.begin in ends:
                part = column.part(*_indices(column, one.begin, ends[one.begin])).between(low, high)
                kept += thinned_values(part, len(part.values))
            else:
                kept.append(one)
        return CurveView(thinned(kept, pixels), exact=True)


def _size(buckets: Iterable[tuple[Bucket, int]]) -> int:
    return sum(end - one.begin for one, end in buckets)


def _indices(column: Column, begin: int, end: int) -> tuple[int, int]:
    """Return the index of the first value in a span of bytes, and the index of the first value after this span."""
    return bisect_left(column.offsets, begin), bisect_left(column.offsets, end)


def _merged_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge sorted spans that overlap or touch."""
    merged_spans: list[tuple[int, int]] = []
    for begin, end in spans:
        if merged_spans and begin <= merged_spans[-1][1]:
            begin, end = merged_spans[-1][0], max(end, merged_spans.pop()[1])
        merged_spans.append((begin, end))
    return merged_spans


def _read_again(path: str, names: Collection[str], spans: Iterable[tuple[int, int]]) -> dict[Key, Column]:
    """Return the values of curves in sorted spans of a file. Each byte is read once."""
    found: dict[Key, list[array[Any]]] = {}
    with open_plain(path) as file:
        for begin, end in _merged_spans(spans):
            file.seek(begin)
            for lines in line_batches(file, end - begin):
                offsets = list(accumulate((len(line) + 1 for line in lines), initial=begin))
                for key, column in columns_of(tables_of(lines)[0], offsets, names).items():
                    fields = found.setdefault(key, [array(kind) for kind in "qqddq"])
                    for field, new in zip(fields, column, strict=True):
                        field.extend(new)
                begin = offsets[-1]
    return {key: Column(*fields) for key, fields in found.items()}


def thinned_values(column: Column, pixels: int) -> list[Bucket]:
    """Return the buckets that `thinned` would return if each value were a bucket, but compute them much faster."""
    steps, count = column.steps, len(column.steps)
    if count <= pixels:
        bounds: list[int] = list(range(count + 1))
    elif steps[-1] <= steps[0] or not all(map(le, steps, islice(steps, 1, None))):
        bounds = [*range(0, count, math.ceil(count / pixels)), count]
    else:
        width = (steps[-1] - steps[0] + 1) / pixels
        bounds = sorted({bisect_left(steps, steps[0] + pixel * width) for pixel in range(pixels)} | {count})
    return [column.bucket(begin, end) for begin, end in pairwise(bounds)]


def thinned(buckets: Sequence[Bucket], pixels: int) -> list[Bucket]:
    """Merge neighbouring buckets so that at most one bucket begins in each of `pixels` columns. No extreme is lost.

    All columns span the same number of steps. If steps decrease somewhere, all columns contain the same number of buckets
    instead.
    """
    if len(buckets) <= pixels:
        return list(buckets)
    first, last = buckets[0].first_step, buckets[-1].last_step
    if last <= first or any(after.first_step < before.first_step for before, after in pairwise(buckets)):
        share = math.ceil(len(buckets) / pixels)
        return [merged(buckets[begin : begin + share]) for begin in range(0, len(buckets), share)]
    return [merged(part) for part in _columns(buckets, first, (last - first + 1) / pixels)]


def _columns(buckets: Iterable[Bucket], first: int, width: float) -> Iterator[list[Bucket]]:
    part: list[Bucket] = []
    column = 0
    for bucket in buckets:
        this = int((bucket.first_step - first) / width)
        if part and this != column:
            yield part
            part = []
        column = this
        part.append(bucket)
    yield part


def merged(buckets: Sequence[Bucket]) -> Bucket:
    """Merge several buckets into one."""
    if len(buckets) == 1:
        return buckets[0]
    numbers = [bucket for bucket in buckets if bucket.finite]
    finite = sum(bucket.finite for bucket in numbers)
    return Bucket(
        min(bucket.first_step for bucket in buckets),
        max(bucket.last_step for bucket in buckets),
        buckets[0].time,
        min((bucket.low for bucket in numbers), default=math.nan),
        max((bucket.high for bucket in numbers), default=math.nan),
        sum(bucket.mean * (bucket.finite / finite) for bucket in numbers) if finite else math.nan,
        finite,
        sum(bucket.size for bucket in buckets),
        buckets[0].begin,
    )


@dataclass(frozen=True, slots=True)
class Preview:
    """A sample of a file: the buckets of each curve, and (step, epoch) pairs with the last sampled step of each epoch."""

    curves: dict[Key, list[Bucket]]
    epochs: list[tuple[int, int]]


def preview_of(path: str | os.PathLike[str], *, places: int = PLACES, place_bytes: int = PLACE_BYTES) -> Preview:
    """Sample the file at several places, and return one bucket for each curve at each place.

    Minima and maxima that lie between these places are not in the result.

    Reads at most `places` * `place_bytes` bytes. Raises OSError if the file cannot be read.
    """
    found: dict[Key, list[Bucket]] = {}
    ends: dict[int, int] = {}
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        for place in range(places):
            begin = max(0, size - place_bytes) * place // max(1, places - 1)
            file.seek(begin)
            lines = file.read(place_bytes).split(b"\n")[1 if begin else 0 : -1]
            tables, _ = tables_of(lines)
            for key, column in columns_of(tables, [begin] * len(lines)).items():
                found.setdefault(key, []).append(column.bucket(0, len(column.values)))
            for table in tables:
                for epoch, step in zip(table.columns["epoch"], table.columns["step"], strict=True):
                    ends[epoch] = max(step, ends.get(epoch, step))
            if size <= place_bytes:
                break
    return Preview(found, sorted((step, epoch) for epoch, step in ends.items()))
