"""Read scalars.jsonl: the series of each metric, and the newest values."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.plots.series import BUCKETS, Series
from hookpoint.run_folder._plain_file import complete_lines, newest_lines, open_plain
from hookpoint.run_folder.curve_reader import MAX_NUMBERS, CurveReader
from hookpoint.run_folder.json_records import number_of, record_of, records_of
from hookpoint.storage.json_rows import OWN_KEYS

MAX_LINES = 2_000
MAX_LOG_STEPS = 50  # records of log steps are read only from the last 50 lines of the file
OF_A_STEP = b'"at": "step"'


class BadLines(HookpointError, ValueError):
    """Raised if a file contains lines that are not records.

    `count` is the number of these lines. `numbers` contains the line numbers of the first few of them, counted from 1.
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
    """Return the series in a file that JSONWriter wrote, in order of appearance. See CurveReader.

    The key of a series is a pair: the name of the metric, and the field `at` of its records. This field is "step", "epoch" or
    "value".

    An incomplete last line is left out, because a run may still be writing it. Values that are not numbers are also left out.
    Other lines that are not records raise BadLines.
    """
    reader = CurveReader(path, names, buckets=buckets, smooth=smooth, epoch_ends=epoch_ends)
    reader.read()
    if reader.bad_lines:
        raise BadLines(path, reader.bad_numbers, reader.bad_lines)
    return reader.curves


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric. `step` and `at` are fields of the record that contains the value."""

    value: float
    step: int
    at: str


@dataclass(frozen=True, slots=True)
class Last:
    """The step, epoch and time of the newest record, the time of the first record, and the newest value of each metric.

    `exists` tells whether the file exists.
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
    """Yield the records in the last 8 MiB of a file, newest first. Yield nothing if the file cannot be read."""
    return (row for line in newest_lines(path) if (row := record_of(line)) is not None)
