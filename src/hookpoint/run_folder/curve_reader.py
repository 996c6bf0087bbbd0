"""CurveReader: read the curves in a scalars.jsonl of any length. Each read continues where the previous read stopped."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Any, BinaryIO

from hookpoint.plots.series import BUCKETS, Series
from hookpoint.run_folder._file_position import FilePosition
from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder.curve_columns import Column, Key, columns_of
from hookpoint.run_folder.json_records import tables_of

ALL_BUCKETS = 32 * BUCKETS  # limit for all curves in a file together
MAX_CURVES = 50_000  # limit per file; a file with more curves probably has step or sample numbers in its metric names
MAX_EPOCHS = 100_000  # limit for stored epoch ends
MAX_NUMBERS = 5  # how many line numbers of bad lines are stored
ANCHOR_BYTES = 2**20  # distance between anchors, the offsets to which the reader can return after a truncation
MAX_ANCHORS = 64


class CurveReader:
    """Read the curves in a file that JSONWriter writes. Each call to `read` reads the lines added since the previous call.

    `curves` maps pairs (metric name, `at`) to series. `at` is "step", "epoch" or "value", as in the file.

    Memory use is limited to about 30 MB for any file: long series are thinned out to `buckets` buckets, or fewer if there are
    many series. The minimum and maximum of each series stay exact. `names` selects metrics, `smooth` is the weight of past
    values in moving averages, and `epoch_ends` receives the last step of each epoch.

    An incomplete last line is left out until it is complete. Lines that are not records and values that are not numbers are
    left out. `bad_lines` counts the lines that are not records, and `bad_numbers` contains the first few of their line numbers.
    If the file is truncated, for example by a resumed run, the reader discards the removed values, and reads only the lines
    after the cut again. `truncations` is the number of truncations so far. A file that replaces another file is read from the
    start, unless both begin with the same content. One thread at a time may call `read`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        names: Collection[str] | None = None,
        *,
        buckets: int = BUCKETS,
        smooth: float = 0.0,
        epoch_ends: dict[int, int] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.curves: dict[Key, Series] = {}
        self.bad_lines = 0
        self.bad_numbers: list[int] = []
        self.truncations = 0
        self.epoch_ends = epoch_ends
        self._names = None if names is None else frozenset(names)
        self._buckets = buckets
        self._smooth = smooth
        self._position = FilePosition()
        self._anchors: list[tuple[int, bytes]] = []
        self._lines = 0

    @property
    def position(self) -> int:
        """The byte offset after the last line that was read."""
        return self._position.offset

    @property
    def points(self) -> int:
        """The number of stored values."""
        return sum(len(series.values) for series in list(self.curves.values()))

    def read(self, seconds: float = math.inf) -> bool:
        """Read new lines for about `seconds` seconds. Return whether there is more to read.

        Raises OSError if the file cannot be read, or has a line of more than 16 MiB.
        """
        end = time.monotonic() + seconds
        with open_plain(self.path) as file:
            self._find_position(file)
            file.seek(self.position)
            for lines in line_batches(file):
                self._add_lines(lines)
                if time.monotonic() > end:
                    return True
        return False

    def _find_position(self, file: BinaryIO) -> None:
        """If the file has changed before the current position, go back to a position before the change."""
        if not self._position.is_in(file):
            self._return(file)

    def _return(self, file: BinaryIO) -> None:
        self.truncations += 1
        while self._anchors and not FilePosition(*self._anchors[-1]).is_in(file):
            self._anchors.pop()
        place = FilePosition(*self._anchors[-1]) if self._anchors else FilePosition()
        if not place.offset or self._smooth or self.epoch_ends is not None:
            self._forget()
            return
        begin = min((series.cut(place.offset) for series in self.curves.values()), default=0)
        self.curves = {key: series for key, series in self.curves.items() if series.values}
        self._anchors = [anchor for anchor in self._anchors if anchor[0] <= begin]
        self._position.move(file, begin)
        self.bad_lines, self.bad_numbers = 0, []  # the positions of bad lines are not stored, so start counting again

    def _forget(self) -> None:
        self.curves, self._position, self._anchors = {}, FilePosition(), []
        self.bad_lines, self.bad_numbers, self._lines = 0, [], 0
        if self.epoch_ends is not None:
            self.epoch_ends.clear()

    def _add_lines(self, lines: Sequence[bytes]) -> None:
        begin = self.position
        offsets = list(accumulate((len(line) + 1 for line in lines), initial=begin))
        for key, column in self._columns(lines, offsets).items():
            self._extend(key, column)
        self._lines += len(lines)
        self._position.advance(lines, offsets[-1] - begin)
        if not self._anchors or self.position - self._anchors[-1][0] >= ANCHOR_BYTES:
            self._anchors.append((self.position, self._position.mark))
            if len(self._anchors) > MAX_ANCHORS:
                self._anchors = self._anchors[::2]  # too many anchors: keep every second one

    def _columns(self, lines: Sequence[bytes], offsets: Sequence[int]) -> dict[Key, Column]:
        """Return the values of each series."""
        tables, bad = tables_of(lines)
        for index in bad:
            self._count_bad_line(index)
        if self.epoch_ends is not None:
            for table in tables:
                self._add_epoch_ends(table.columns["epoch"], table.columns["step"])
        return columns_of(tables, offsets, self._names)

    def _extend(self, key: Key, column: Column) -> None:
        series = self.curves.get(key)
        if series is None:
            if len(self.curves) >= MAX_CURVES:
                return
            series = self._new_series(key)
        elif series.offsets and column.offsets[0] <= series.offsets[-1]:  # these lines are read again after a truncation
            column = column.part(bisect_right(column.offsets, series.offsets[-1]))
        series.extend(*column)

    def _new_series(self, key: Key) -> Series:
        limit = min(self._buckets, ALL_BUCKETS // (len(self.curves) + 1))
        series = self.curves[key] = Series(*key, buckets=limit, smooth=self._smooth)
        # When the number of curves reaches a power of two, reduce the limit of all existing curves.
        if len(self.curves) & (len(self.curves) - 1) == 0:
            for each in self.curves.values():
                each.limit(limit)
        return series

    def _count_bad_line(self, number: int) -> None:
        self.bad_lines += 1
        if self.bad_lines <= MAX_NUMBERS:
            self.bad_numbers.append(self._lines + number + 1)

    def _add_epoch_ends(self, epochs: Iterable[int], steps: Iterable[int]) -> None:
        assert self.epoch_ends is not None
        ends = self.epoch_ends
        for epoch, step in zip(epochs, steps, strict=True):
            if step > ends.get(epoch, 0) and len(ends) < MAX_EPOCHS:
                ends[epoch] = step

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs, except for the series."""
        anchors = [[offset, mark.hex()] for offset, mark in self._anchors]
        position = [self._position.offset, self._position.mark.hex()]
        return {"position": position, "anchors": anchors, "bad_lines": self.bad_lines, "bad_numbers": self.bad_numbers}

    def restore(self, state: dict[str, Any], curves: Iterable[Series]) -> None:
        """Continue where another reader of the file stopped. The next `read` checks whether the file has changed since then."""
        self.curves = {(series.name, series.at): series for series in curves}
        offset, mark = state["position"]
        self._position = FilePosition(offset, bytes.fromhex(mark))
        self._anchors = [(offset, bytes.fromhex(mark)) for offset, mark in state["anchors"]]
        self.bad_lines, self.bad_numbers = state["bad_lines"], list(state["bad_numbers"])
