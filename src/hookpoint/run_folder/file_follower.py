"""Following: new records of a file that a run is writing, and may cut back or replace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from hookpoint.run_folder._plain_file import lines_backwards, open_plain, whole_lines
from hookpoint.run_folder.scalars_file import record_of
from hookpoint.storage.disk.whole_lines import end_of_whole_lines

MARK_BYTES = 256  # so much before where we are tells whether the file is still the one we read


class Following:
    """Give the last records of a file, then at each call those that came since.

    A resumed run cuts its file back and goes on writing: what is new then are the records of a later time than any that was
    given. A file in the place of another one, as a fresh run makes it, is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_id: tuple[int, int] | None = None
        self._position = 0
        self._mark = b""
        self._latest = float("-inf")
        self.was_cut = False

    def last(self, count: int) -> list[dict[str, Any]]:
        """Return the last so many records, the oldest first, and go on from there. Only the end of the file is read."""
        rows: list[dict[str, Any]] = []
        try:
            with open_plain(self._path) as file:
                for row in self._backwards(file):
                    self._latest = max(self._latest, row["time"])
                    if len(rows) >= count:
                        break
                    rows.append(row)
        except OSError:
            pass
        return rows[::-1]

    def new(self) -> list[dict[str, Any]]:
        """Return the records that came since the last call, the oldest first; nothing while there is no such file."""
        self.was_cut = False
        try:
            with open_plain(self._path) as file:
                status = os.fstat(file.fileno())
                file_id = status.st_dev, status.st_ino
                if file_id != self._file_id:
                    self._file_id, self._position, self._mark = file_id, 0, b""
                elif status.st_size < self._position or not self._is_as_we_left_it(file):
                    return self._after_a_cut(file)
                file.seek(self._position)
                return self._taken(file)
        except OSError:
            return []

    def _taken(self, file: BinaryIO) -> list[dict[str, Any]]:
        rows = []
        for line in whole_lines(file):
            self._position += len(line) + 1
            self._mark = (self._mark + line + b"\n")[-MARK_BYTES:]
            row = record_of(line)
            if row is not None:
                rows.append(row)
                self._latest = max(self._latest, row["time"])
        return rows

    def _after_a_cut(self, file: BinaryIO) -> list[dict[str, Any]]:
        self.was_cut = True
        rows = list(takewhile(lambda row: row["time"] > self._latest, self._backwards(file)))
        self._latest = max([self._latest, *(row["time"] for row in rows)])
        return rows[::-1]

    def _backwards(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        """Stand behind the last whole line, and yield the records before it, the newest first."""
        status, end = os.fstat(file.fileno()), end_of_whole_lines(file)
        file.seek(max(0, end - MARK_BYTES))
        self._file_id, self._position = (status.st_dev, status.st_ino), end
        self._mark = file.read(min(end, MARK_BYTES))
        return (row for line in lines_backwards(file, end) if (row := record_of(line)) is not None)

    def _is_as_we_left_it(self, file: BinaryIO) -> bool:
        file.seek(self._position - len(self._mark))
        return file.read(len(self._mark)) == self._mark
