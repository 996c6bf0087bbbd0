"""Curve columns: the values of each curve in a batch of records."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from hookpoint.plots.series import Bucket
from hookpoint.run_folder.json_records import Table, number_of
from hookpoint.storage.json_rows import OWN_KEYS

Key = tuple[str, str]


class Column(NamedTuple):
    """Values of a curve in the order of the file, with the step, epoch, time and byte offset of each record."""

    steps: Sequence[int]
    epochs: Sequence[int]
    times: Sequence[float]
    values: Sequence[float]
    offsets: Sequence[int]

    def part(self, begin: int, end: int | None = None) -> Column:
        """Return the values from index `begin` up to, but not including, index `end`.

        If `end` is None, return all values from `begin` on.
        """
        fields: list[Any] = [field[begin:end] for field in self]
        return Column(*fields)

    def between(self, low: float, high: float) -> Column:
        """Return the values with steps from `low` to `high`."""
        if not self.steps or (min(self.steps) >= low and max(self.steps) <= high):
            return self
        inside = [low <= step <= high for step in self.steps]
        fields: list[Any] = [list(compress(field, inside)) for field in self]
        return Column(*fields)

    def bucket(self, begin: int, end: int) -> Bucket:
        """Merge values into a bucket."""
        steps, values = self.steps[begin:end], self.values[begin:end]
        total = sum(values)
        if not math.isfinite(total):
            values = list(filter(math.isfinite, values))
            total = sum(values)
        finite = len(values)
        if not finite:
            low = high = mean = math.nan
        else:
            low, high = min(values), max(values)
            mean = total / finite if math.isfinite(total) else sum(value / finite for value in values)
        return Bucket(min(steps), max(steps), self.times[begin], low, high, mean, finite, len(steps), self.offsets[begin])


def columns_of(tables: Iterable[Table], offsets: Sequence[int], names: Collection[str] | None = None) -> dict[Key, Column]:
    """Return the values of each curve, keyed by name and `at`. `offsets` contains the byte offset of each line."""
    found: dict[Key, list[Column]] = {}
    for columns, indices in tables:
        places = array("q", map(offsets.__getitem__, indices))
        clocks = array("q", columns["step"]), array("q", columns["epoch"]), array("d", columns["time"])
        for at in dict.fromkeys(columns["at"]):
            chosen = None if columns["at"].count(at) == len(places) else [one == at for one in columns["at"]]
            for name, values in columns.items():
                if name not in OWN_KEYS and (names is None or name in names):
                    column = _numbers(values, *clocks, places, chosen)
                    if column.steps:
                        found.setdefault((name, at), []).append(column)
    return {key: joined(columns) for key, columns in found.items()}


def joined(columns: Sequence[Column]) -> Column:
    """Return the values of several columns in the order of the file."""
    if len(columns) == 1:
        return columns[0]
    rows = sorted((row for column in columns for row in zip(*column, strict=True)), key=lambda row: row[4])
    return Column(*zip(*rows, strict=True))


def _numbers(
    values: Sequence[Any],
    steps: Sequence[int],
    epochs: Sequence[int],
    times: Sequence[float],
    places: Sequence[int],
    chosen: Sequence[bool] | None,
) -> Column:
    """Return the columns of a metric, leaving out records that have a different `at` or no number for the metric."""
    if chosen is None and set(map(type, values)) == {float}:
        return Column(steps, epochs, times, array("d", values), places)
    numbers = [number_of(value) for value in values]
    wanted = [index for index, number in enumerate(numbers) if number is not None and (chosen is None or chosen[index])]
    return Column(
        array("q", map(steps.__getitem__, wanted)),
        array("q", map(epochs.__getitem__, wanted)),
        array("d", map(times.__getitem__, wanted)),
        array("d", [numbers[index] or 0.0 for index in wanted]),
        array("q", map(places.__getitem__, wanted)),
    )
