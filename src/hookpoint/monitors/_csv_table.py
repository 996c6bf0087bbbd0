"""CsvTable: a table on disk that grows by rows, and now and then by a column."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from hookpoint.storage.disk import disk

Row = Mapping[str, str]


class CsvTable:
    """Rows of named cells in a file of values that a `separator` parts, with the names in its first line.

    A row is appended. One with a name that is no column yet makes one: the file is written anew beside the old one and takes
    its place in one step, so that a reader sees either of them whole. So it is where the file is not what it was, as after a
    full disk. Cells without a value are empty. Only one process writes to it.
    """

    def __init__(self, path: Path, separator: str = ",") -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows = 0
        self._separator = separator
        self._size = -1

    def read(self) -> list[Row]:
        """Return the rows that are in the file, without a last one that was torn; none where there is no file."""
        content = disk.read(self.path) if disk.is_file(self.path) else b""
        whole = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        lines = list(csv.reader(io.StringIO(whole, newline=""), delimiter=self._separator))
        self.columns = lines[0] if lines else []
        return [dict(zip(self.columns, line, strict=False)) for line in lines[1:] if line]

    def replace(self, rows: Iterable[Row], columns: Iterable[str]) -> None:
        """Make these the rows of the table; a reader sees all of them, or what was there before."""
        kept, self.columns = [*rows], list(dict.fromkeys(columns))
        content = self._header() + self._lines(kept)
        staging = self.path.with_name(disk.hidden("staging", self.path.name))
        try:
            disk.write(staging, content)
            os.replace(staging, self.path)
        except BaseException:
            staging.unlink(missing_ok=True)
            raise
        self.rows, self._size = len(kept), len(content)

    def append(self, rows: list[Row]) -> None:
        """Add rows behind those that are there."""
        columns = self.columns
        new = [name for row in rows for name in row if name not in columns]
        if new or not self._is_as_it_was():
            kept = self.read()[: self.rows]
            self.replace([*kept, *rows], [*columns, *self.columns, *new])
            return
        content = self._lines(rows)
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        with open(os.open(self.path, flags), "ab") as file:
            file.write(content)
        self.rows += len(rows)
        self._size += len(content)

    def move_aside(self) -> None:
        """Give what is in the place of the file another name, with a number that is free."""
        names = (f"{self.path.stem}.{number}{self.path.suffix}" for number in count(1))
        disk.rename(self.path, next(path for name in names if not disk.exists(path := self.path.with_name(name))))

    def sync(self) -> None:
        """Wait until the file, and its name, are on disk."""
        if disk.is_file(self.path):
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            disk.sync_folder(self.path.parent)

    def _is_as_it_was(self) -> bool:
        found = disk.status(self.path)
        return disk.is_file(self.path) and found is not None and found.st_size == self._size

    def _header(self) -> bytes:
        lines = io.StringIO(newline="")
        is_plain = "".join(self.columns).isprintable()
        csv.writer(
            lines, delimiter=self._separator, lineterminator="\n", quoting=csv.QUOTE_MINIMAL if is_plain else csv.QUOTE_ALL
        ).writerow(self.columns)
        return lines.getvalue().encode(errors="replace")

    def _lines(self, rows: Iterable[Row]) -> bytes:
        lines = io.StringIO(newline="")
        csv.DictWriter(lines, self.columns, delimiter=self._separator, lineterminator="\n").writerows(rows)
        return lines.getvalue().encode(errors="replace")
