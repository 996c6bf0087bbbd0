"""Read scalars.jsonl: its records, the series of its metrics, and their newest values."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.plots.series import BUCKETS, Series
from hookpoint.run_folder._plain_file import complete_lines, line_batches, newest_lines, open_plain

OWN_KEYS = frozenset({"step", "iteration", "epoch", "time", "at", "event"})  # all other keys are metrics
NOT_FINITE = {name: float(name) for name in ("nan", "inf", "-inf")}
MAX_NUMBERS = 5  # bad lines that are listed
AT_ONCE = 1_000  # lines decoded together
ALL_BUCKETS = 32 * BUCKETS  # of all series of a file
MAX_EPOCHS = 100_000  # stored ends of epochs
MAX_LINES = 2_000
MAX_LOG_STEPS = 50  # earlier records of log steps are not parsed
OF_A_STEP = b'"at": "step"'
_LARGEST = 2**63  # the limit of an integer array
_decode = json.JSONDecoder().raw_decode


class BadLines(HookpointError, ValueError):
    """A file has lines that are not records.

    `numbers` are the line numbers of the first few, from 1; `count` is their total number.
    """

    def __init__(self, path: str | os.PathLike[str], numbers: Collection[int], count: int) -> None:
        shown = ", ".join(str(number) for number in numbers)
        more = f" and {count - len(numbers)} more" if count > len(numbers) else ""
        what = "line {} is not a JSON record with a step" if count == 1 else "lines {} are not JSON records with a step"
        super().__init__(f"{os.fspath(path)}: {what.format(f'{shown}{more}')}")
        self.numbers = tuple(numbers)
        self.count = count


def valid_records(path: str | os.PathLike[str], batches: Iterable[Sequence[bytes]]) -> Iterator[dict[str, Any]]:
    """Yield the records in batches of lines. At the end, raise BadLines if some lines are not records."""
    numbers: list[int] = []
    number = count = 0
    for lines in batches:
        for row in records_of(lines):
            number += 1
            if row is not None:
                yield row
                continue
            count += 1
            if count <= MAX_NUMBERS:
                numbers.append(number)
    if count:
        raise BadLines(path, numbers, count)


def read_series(
    path: str | os.PathLike[str],
    names: Collection[str] | None = None,
    *,
    buckets: int = BUCKETS,
    smooth: float = 0.0,
    epoch_ends: dict[int, int] | None = None,
) -> dict[tuple[str, str], Series]:
    """Return the series of a file that JSONWriter wrote, by name and `at`, in order of appearance. `names` selects metrics.

    An incomplete last line is left out, because a run may still be writing it. Values that are not numbers are also left out.
    Other lines that are not records raise BadLines.

    About 30 MB of memory are enough for any file: long series are thinned out to `buckets` buckets, or fewer if there are many
    series. `smooth` is the weight of past values in their moving averages. `epoch_ends` receives the last step of each epoch.
    """
    wanted = None if names is None else frozenset(names)
    found: dict[tuple[str, str], Series] = {}
    with open_plain(path) as file:
        for row in valid_records(path, line_batches(file)):
            step, epoch, time, at = row.pop("step"), row.pop("epoch"), row.pop("time"), row.pop("at")
            row.pop("iteration", None)
            if epoch_ends is not None and step > epoch_ends.get(epoch, 0) and len(epoch_ends) < MAX_EPOCHS:
                epoch_ends[epoch] = step
            for name, raw in row.items():
                if wanted is not None and name not in wanted:
                    continue
                value = raw if type(raw) is float else number_of(raw)
                if value is None or name == "event":
                    continue
                series = found.get((name, at))
                if series is None:
                    limit = min(buckets, ALL_BUCKETS // (len(found) + 1))
                    series = found[name, at] = Series(name, at, buckets=limit, smooth=smooth)
                    if len(found) & (len(found) - 1) == 0:  # a power of two: twice as many as at the last check
                        for each in found.values():
                            each.limit(limit)
                series.add(step, epoch, time, value)
    return found


def records_of(lines: Sequence[bytes]) -> Iterator[dict[str, Any] | None]:
    """Yield `record_of` for each line. Decoding many lines at once takes half the time."""
    for begin in range(0, len(lines), AT_ONCE):
        batch = lines[begin : begin + AT_ONCE]
        try:
            rows = json.loads(f"[{b','.join(batch).decode()}]")
            if len(rows) != len(batch):
                raise ValueError
            yield from map(_checked, rows)
        except (ValueError, RecursionError):
            yield from map(record_of, batch)


def record_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a record with a step, an epoch, a time and an `at` of the right types. Return None if it is not one."""
    try:
        row: Any
        try:
            row, end = _decode(text := line.decode())  # takes half the time of json.loads
            if end != len(text):
                raise ValueError
        except ValueError:
            row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _checked(row)


def _checked(row: Any) -> dict[str, Any] | None:
    """Return a decoded line if it is a record, or None."""
    try:
        step, epoch = row["step"], row.setdefault("epoch", 0)
        time, at = row.setdefault("time", 0.0), row.setdefault("at", "step")
        if type(row.get("iteration")) is float:  # a metric of this name, in a file of an older version
            row["values/iteration"] = row.pop("iteration")
        is_record = type(step) is int and type(epoch) is int and type(at) is str and type(time) in (float, int)
        return row if is_record and abs(step) < _LARGEST and abs(epoch) < _LARGEST and abs(time) < _LARGEST else None
    except (TypeError, KeyError, AttributeError):
        return None


def number_of(value: Any) -> float | None:
    """Return a value of a record as a float; None if it is not a number. The strings "nan", "inf" and "-inf" are numbers."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return NOT_FINITE["inf"] if value > 0 else NOT_FINITE["-inf"]
    return NOT_FINITE.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric, with the step and kind of its record."""

    value: float
    step: int
    at: str


@dataclass(frozen=True, slots=True)
class Last:
    """The step, epoch and time of the newest record, the time of the first record, and the newest value of each metric.

    `exists` tells whether there is a file.
    """

    exists: bool = False
    step: int | None = None
    epoch: int | None = None
    time: float | None = None
    first_time: float | None = None
    points: dict[str, Point] = field(default_factory=dict)


def last_of(path: Path) -> Last:
    """Read the first line and the end of a file that JSONWriter wrote. Lines that are not records are skipped."""
    try:
        with open_plain(path) as file:
            first = record_of(next(complete_lines(file), b""))
    except OSError:
        return Last()
    rows = list(_newest(path))
    if not rows:
        return Last(exists=True)
    points: dict[str, Point] = {}
    for row in rows:
        for name, raw in row.items():
            if name not in OWN_KEYS and name not in points and (value := number_of(raw)) is not None:
                points[name] = Point(value, row["step"], row["at"])
    newest, oldest = rows[0], rows[-1] if first is None else first
    epochs_first = {name: points[name] for name in sorted(points, key=lambda name: (points[name].at != "epoch", name))}
    return Last(True, newest["step"], newest["epoch"], float(newest["time"]), float(oldest["time"]), epochs_first)


def _newest(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(islice(newest_lines(path), MAX_LINES)):
        is_wanted = number < MAX_LOG_STEPS or OF_A_STEP not in line
        if is_wanted and (row := record_of(line)) is not None:
            yield row


def rows_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in the last 8 MiB of a file, newest first; nothing if the file cannot be read."""
    return (row for line in newest_lines(path) if (row := record_of(line)) is not None)
