"""What scalars.jsonl says: its records, and the series of each metric, read in one pass."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder.series import BUCKETS, Series

OWN_KEYS = frozenset({"step", "iteration", "epoch", "time", "at", "event"})  # of a record, all others are metrics
NOT_FINITE = {name: float(name) for name in ("nan", "inf", "-inf")}
NAMED = 5  # so many bad lines are named, others are counted
AT_ONCE = 1_000  # lines that are decoded together
ALL_BUCKETS = 32 * BUCKETS  # of all series of a file
MOST_EPOCHS = 100_000  # whose ends are kept; between more of them no picture shows anything
_MOST = 2**63  # as much as an array of integers holds
_decode = json.JSONDecoder().raw_decode


class BadLines(HookpointError, ValueError):
    """A file has lines that are no records. `numbers` are those of the first, from 1; `count` is how many there are."""

    def __init__(self, path: str | os.PathLike[str], numbers: Collection[int], count: int) -> None:
        shown = ", ".join(str(number) for number in numbers)
        more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
        what = "is no line of JSON with a step" if count == 1 else "are no lines of JSON with a step"
        super().__init__(f"{os.fspath(path)}: line{'s' * (count > 1)} {shown}{more} {what}")
        self.numbers = tuple(numbers)
        self.count = count


class BadNumbers:
    """Which lines of a file are no records."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._count = 0

    def left_out(self, batches: Iterable[Sequence[bytes]]) -> Iterator[dict[str, Any]]:
        """Yield the records of lines; take down the numbers of other lines."""
        number = 0
        for lines in batches:
            for row in records_of(lines):
                number += 1
                if row is not None:
                    yield row
                    continue
                self._count += 1
                if self._count <= NAMED:
                    self._numbers.append(number)

    def refuse(self, path: str | os.PathLike[str]) -> None:
        """Raise BadLines where there were any."""
        if self._count:
            raise BadLines(path, self._numbers, self._count)


def read_series(
    path: str | os.PathLike[str],
    names: Collection[str] | None = None,
    *,
    buckets: int = BUCKETS,
    smooth: float = 0.0,
    epoch_ends: dict[int, int] | None = None,
) -> dict[tuple[str, str], Series]:
    """Return the series of a file that JSONWriter wrote, or those of some names, by name and `at`, as they appear.

    A last line that is not whole is left out: a run may be writing it, or was killed while it did. Values that are no numbers
    are left out too. Raises BadLines where other lines are no records, and OSError where there is no such plain file.

    However long the file is, some 30 MB are enough: long series are thinned out to `buckets` parts, and to fewer where there
    are many series. `smooth` is the weight of their moving averages. `epoch_ends` is filled with the last step of each epoch.
    """
    wanted = None if names is None else frozenset(names)
    found: dict[tuple[str, str], Series] = {}
    bad = BadNumbers()
    with open_plain(path) as file:
        for row in bad.left_out(line_batches(file)):
            step, epoch, time, at = row.pop("step"), row.pop("epoch"), row.pop("time"), row.pop("at")
            row.pop("iteration", None)
            if epoch_ends is not None and step > epoch_ends.get(epoch, 0) and len(epoch_ends) < MOST_EPOCHS:
                epoch_ends[epoch] = step
            for name, given in row.items():
                if wanted is not None and name not in wanted:
                    continue
                value = given if type(given) is float else number_of(given)
                if value is None or name == "event":
                    continue
                series = found.get((name, at))
                if series is None:
                    series = found[name, at] = Series(name, at, buckets=_share(buckets, len(found) + 1), smooth=smooth)
                    if len(found) & (len(found) - 1) == 0:  # twice as many as when it was last done
                        for one in found.values():
                            one.limit(_share(buckets, len(found)))
                series.add(step, epoch, time, value)
    bad.refuse(path)
    return found


def _share(buckets: int, series: int) -> int:
    return min(buckets, ALL_BUCKETS // series)


def records_of(lines: Sequence[bytes]) -> Iterator[dict[str, Any] | None]:
    """Yield what `record_of` returns of each line. JSON that is decoded in one go takes half the time."""
    for begin in range(0, len(lines), AT_ONCE):
        several = lines[begin : begin + AT_ONCE]
        try:
            rows = json.loads(f"[{b','.join(several).decode()}]")
            if len(rows) != len(several):
                raise ValueError
            yield from map(_checked, rows)
        except (ValueError, RecursionError):
            yield from map(record_of, several)


def record_of(line: bytes) -> dict[str, Any] | None:
    """Return what a line says, with a step, an epoch, a time and an `at` of the right types; None where it is no record."""
    try:
        row: Any
        try:
            row, end = _decode(text := line.decode())  # half the time of json.loads
            if end != len(text):
                raise ValueError
        except ValueError:
            row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _checked(row)


def _checked(row: Any) -> dict[str, Any] | None:
    """Return what JSON says, where it is a record."""
    try:
        step, epoch, time, at = (
            row["step"],
            row.setdefault("epoch", 0),
            row.setdefault("time", 0.0),
            row.setdefault("at", "step"),
        )
        if type(row.get("iteration")) is float:  # a metric of that name, in a file whose lines do not have the clock yet
            row["values/iteration"] = row.pop("iteration")
        is_record = type(step) is int and type(epoch) is int and type(at) is str and type(time) in (float, int)
        return row if is_record and abs(step) < _MOST and abs(epoch) < _MOST and abs(time) < _MOST else None
    except (TypeError, KeyError, AttributeError):
        return None


def number_of(given: Any) -> float | None:
    """Return a value of a record as a float, NaN and infinities of strings too; None where it is no number."""
    if type(given) is float:
        return given
    if isinstance(given, int):
        try:
            return float(given)
        except OverflowError:
            return NOT_FINITE["inf"] if given > 0 else NOT_FINITE["-inf"]
    return NOT_FINITE.get(given) if isinstance(given, str) else None
