"""Last: the newest values of a run, from the end of scalars.jsonl."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hookpoint.run_folder._plain_file import complete_lines, newest_lines, open_plain
from hookpoint.run_folder.scalars_file import OWN_KEYS, number_of, record_of

MAX_LINES = 2_000
MAX_LOG_STEPS = 50  # earlier records of log steps are not parsed
OF_A_STEP = b'"at": "step"'


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a metric, with the step and kind of its record."""

    value: float
    step: int
    at: str


@dataclass(frozen=True, slots=True)
class Last:
    """The step, epoch and time of the newest record, the time of the first, and the newest value of each metric.

    `exists` is whether there is a file.
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
    """Yield the records in the last 8 MiB of a file, the newest first; nothing if it cannot be read."""
    return (row for line in newest_lines(path) if (row := record_of(line)) is not None)
