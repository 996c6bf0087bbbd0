"""CsvTable: a CSV file to which rows and columns can be added."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Literal

from hookpoint.storage.disk import disk

Row = Mapping[str, str]


class CsvTable:
    """Rows of named cells in a CSV file with a header.

    Rows are appended. If there is a new column, or if the file does not have the expected size, for example because the disk
    was full, the file is replaced atomically with a new one. Missing cells are empty. Only one process may write to the file.
    """

    def __init__(self, path: Path, separator: str = ",") -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows = 0
        self._separator = separator
        self._size = -1

    def read(self) -> list[Row]:
        """Return the rows of the file, without an incomplete last row. The result is empty if there is no file."""
        content = disk.read(self.path) if disk.is_file(self.path) else b""
        complete = content[: content.rfind(b"\n") + 1].decode(errors="replace")
        lines = list(csv.reader(io.StringIO(complete, newline=""), delimiter=self._separator))
        self.columns = lines[0] if lines else []
        return [dict(zip(self.columns, line, strict=False)) for line in lines[1:] if line]

    def replace(self, rows: Iterable[Row], columns: Iterable[str]) -> None:
        """Atomically replace the file with a new one that contains these rows and columns."""
        rows, self.columns = [*rows], list(dict.fromkeys(columns))
        quoting: Literal[0, 1] = 0 if "".join(self.columns).isprintable() else 1  # 0 is QUOTE_MINIMAL, 1 is QUOTE_ALL
        content = self._lines([dict(zip(self.columns, self.columns, strict=True))], quoting) + self._lines(rows)
        disk.replace(self.path, content)
        self.rows, self._size = len(rows), len(content)

    def append(self, rows: list[Row]) -> None:
        """Append rows, and add columns for new names."""
        columns = self.columns
        new = [name for row in rows for name in row if name not in columns]
        status = disk.status(self.path)
        if new or not disk.is_file(self.path) or status is None or status.st_size != self._size:
            earlier = self.read()[: self.rows]
            self.replace([*earlier, *rows], [*columns, *self.columns, *new])
            return
        content = self._lines(rows)
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        with open(os.open(self.path, flags), "ab") as file:
            file.write(content)
        self.rows += len(rows)
        self._size += len(content)

    def rotate(self) -> None:
        """Rename the file: `log.csv` becomes `log.1.csv`, or gets the next free number."""
        names = (f"{self.path.stem}.{number}{self.path.suffix}" for number in count(1))
        disk.rename(self.path, next(path for name in names if not disk.exists(path := self.path.with_name(name))))

    def sync(self) -> None:
        """Flush the file and its directory entry to disk."""
        if disk.is_file(self.path):
            disk.sync_file(self.path)
            disk.sync_folder(self.path.parent)

    def _lines(self, rows: Iterable[Row], quoting: Literal[0, 1] = 0) -> bytes:
        lines = io.StringIO(newline="")
        csv.DictWriter(lines, self.columns, delimiter=self._separator, lineterminator="\n", quoting=quoting).writerows(rows)
        return lines.getvalue().encode(errors="replace")
