"""Series: what scalars.jsonl says of each metric, read in one pass."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import HookpointError
from hookpoint.run_folder._plain_file import open_plain, whole_lines

OWN_KEYS = frozenset({"step", "iteration", "epoch", "time", "at", "event"})  # of a record, all others are metrics
NOT_FINITE = {name: float(name) for name in ("nan", "inf", "-inf")}
NAMED = 5  # so many bad lines are named, others are counted
_MOST = 2**63  # as much as an array of integers holds
_decode = json.JSONDecoder().raw_decode


class BadLines(HookpointError, ValueError):
    """A file has lines that are no records. `numbers` are theirs, from 1."""

    def __init__(self, path: str | os.PathLike[str], numbers: Collection[int]) -> None:
        shown = ", ".join(str(number) for number in list(numbers)[:NAMED])
        more = f" and {len(numbers) - NAMED} more" if len(numbers) > NAMED else ""
        what = "is no line of JSON with a step" if len(numbers) == 1 else "are no lines of JSON with a step"
        super().__init__(f"{os.fspath(path)}: line{'s' * (len(numbers) > 1)} {shown}{more} {what}")
        self.numbers = tuple(numbers)


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one metric, in the order of the file. `at` is "step", "epoch" or "value", as JSONWriter has it."""

    name: str
    at: str
    steps: array[int]
    epochs: array[int]
    times: array[float]
    values: array[float]

    @classmethod
    def empty(cls, name: str, at: str) -> Series:
        return cls(name, at, array("q"), array("q"), array("d"), array("d"))


def read_series(path: str | os.PathLike[str], names: Collection[str] | None = None) -> dict[tuple[str, str], Series]:
    """Return the series of a file that JSONWriter wrote, or those of some names, by name and `at`, as they appear.

    A last line that is not whole is left out: a run may be writing it, or was killed while it did. Values that are no numbers
    are left out too. Raises BadLines where other lines are no records, and OSError where there is no such plain file.
    A million lines of three values take a few seconds and 130 MB.
    """
    wanted = None if names is None else frozenset(names)
    found: dict[tuple[str, str], Series] = {}
    bad: list[int] = []
    with open_plain(path) as file:
        for number, line in enumerate(whole_lines(file), 1):
            row = record_of(line)
            if row is None:
                bad.append(number)
                continue
            step, epoch, time, at = row.pop("step"), row.pop("epoch"), row.pop("time"), row.pop("at")
            row.pop("iteration", None)
            for name, given in row.items():
                if wanted is not None and name not in wanted:
                    continue
                value = given if type(given) is float else number_of(given)
                if value is None or name == "event":
                    continue
                series = found.get((name, at))
                if series is None:
                    series = found[name, at] = Series.empty(name, at)
                series.steps.append(step)
                series.epochs.append(epoch)
                series.times.append(time)
                series.values.append(value)
    if bad:
        raise BadLines(path, bad)
    return found


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
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
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
