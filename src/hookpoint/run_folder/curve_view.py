"""Views of a curve: reduce a series, or a range of its steps, to as many buckets as a chart has pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hookpoint.plots.series import Bucket
from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder.curve_reader import CurveReader, Key
from hookpoint.run_folder.json_records import number_of, records_of

MAX_BYTES = 16 * 2**20  # limit for bytes to read again for a range of steps


@dataclass(frozen=True, slots=True)
class CurveView:
    """A curve's buckets, in order. `exact` tells whether their extremes include every value in the range."""

    buckets: list[Bucket]
    exact: bool


def view_of(reader: CurveReader, key: Key, *, low: float = -math.inf, high: float = math.inf, pixels: int = 1_000) -> CurveView:
    """Return a curve's values with steps from `low` to `high`, in at most `pixels` buckets.

    The series may have left values out, so a narrow range is read from the file again. Of a wide range, only the buckets at its
    ends are read again. If even this would read more than 16 MiB, the range is not exact.

    Raises KeyError if there is no such curve.
    """
    buckets = list(reader.curves[key].buckets())
    if low == -math.inf and high == math.inf:
        return CurveView(thinned(buckets, pixels), exact=True)
    ends = [bucket.begin for bucket in buckets[1:]] + [reader.position]
    inside = [(one, end) for one, end in zip(buckets, ends, strict=True) if one.first_step <= high and one.last_step >= low]
    unsure = [(one, end) for one, end in inside if one.size > 1]
    if sum(end - one.begin for one, end in unsure) > MAX_BYTES:
        unsure = [(one, end) for one, end in unsure if one.first_step < low or one.last_step > high]
    again = {one.begin: end for one, end in unsure}
    if sum(end - begin for begin, end in again.items()) > MAX_BYTES:
        return CurveView(thinned([one for one, _ in inside], pixels), exact=False)
    try:
        found = _read_again(reader, key, again)
    except OSError:  # the file was deleted
        return CurveView(thinned([one for one, _ in inside], pixels), exact=False)
    parts = [found[one.begin] if one.begin in again else [one] for one, _ in inside]
    kept = [one for part in parts for one in part if one.first_step <= high and one.last_step >= low]
    return CurveView(thinned(kept, pixels), exact=True)


def _read_again(reader: CurveReader, key: Key, ranges: dict[int, int]) -> dict[int, list[Bucket]]:
    """Return a curve's values in byte ranges, by the start of each range. Neighbouring ranges are read together."""
    found: dict[int, list[Bucket]] = {begin: [] for begin in ranges}
    spans: list[list[int]] = []
    for begin, end in ranges.items():
        if spans and spans[-1][1] == begin:
            spans[-1][1] = end
        else:
            spans.append([begin, end])
    with open_plain(reader.path) as file:
        for begin, end in spans:
            file.seek(begin)
            owner, offset = begin, begin
            for lines in line_batches(file, end - begin):
                for line, row in zip(lines, records_of(lines), strict=True):
                    owner = offset if offset in ranges else owner
                    value = number_of(row.get(key[0])) if row is not None and row["at"] == key[1] else None
                    if row is not None and value is not None:
                        number, finite = (value, 1) if math.isfinite(value) else (math.nan, 0)
                        found[owner].append(
                            Bucket(row["step"], row["step"], row["time"], number, number, number, finite, 1, offset)
                        )
                    offset += len(line) + 1
    return found


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
