"""FileFollower: read new records from a file that a run is writing and may truncate or replace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, BinaryIO

from hookpoint.run_folder._file_position import FilePosition, id_of
from hookpoint.run_folder._plain_file import complete_lines, open_plain
from hookpoint.run_folder.file_stamp import FileStamp
from hookpoint.run_folder.json_records import record_of
from hookpoint.storage.disk.complete_lines import end_of_complete_lines, lines_backwards


class FileFollower:
    """Follow a file: `last` returns the last records, and each call of `new` returns the records added since the previous call.

    After a resumed run has truncated its file, a record counts as new if it is later than every record returned before. If a
    new run replaces the file, the new file is read from the start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = FilePosition()
        self._latest = float("-inf")
        self._stamp: FileStamp | None = None
        self.was_truncated = False

    def last(self, count: int) -> list[dict[str, Any]]:
        """Return the last `count` records, oldest first. Later, `new` returns only records that were added after this call.

        Only the end of the file is read.
        """
        rows: list[dict[str, Any]] = []
        with suppress(OSError), open_plain(self._path) as file:
            rows = list(islice(self._backwards(file), count + 1))
            self._latest = max((row["time"] for row in rows), default=self._latest)
        return rows[:count][::-1]

    def new(self) -> list[dict[str, Any]]:
        """Return the records added since the last call, oldest first. Return an empty list if there is no file."""
        self.was_truncated = False
        try:
            stamp = FileStamp.of(self._path)
            if stamp == self._stamp:
                return []
            self._stamp = None  # stays None if the file cannot be read
            with open_plain(self._path) as file:
                self._stamp = stamp if stamp.is_settled else None
                if id_of(file) != self._position.file_id:
                    self._position.move(file, 0)
                elif not self._position.is_in(file):
                    return self._after_truncation(file)
                file.seek(self._position.offset)
                return self._read(file)
        except OSError:
            return []

    def _read(self, file: BinaryIO) -> list[dict[str, Any]]:
        rows = []
        for line in complete_lines(file):
            self._position.advance((line,), len(line) + 1)
            row = record_of(line)
            if row is not None:
                rows.append(row)
                self._latest = max(self._latest, row["time"])
        return rows

    def _after_truncation(self, file: BinaryIO) -> list[dict[str, Any]]:
        self.was_truncated = True
        rows = list(takewhile(lambda row: row["time"] > self._latest, self._backwards(file)))
        self._latest = max([self._latest, *(row["time"] for row in rows)])
        return rows[::-1]

    def _backwards(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        """Move to the end of the last complete line, and return the records before it, newest first."""
        end = end_of_complete_lines(file)
        self._position.move(file, end)
        return (row for _, line in lines_backwards(file, end) if (row := record_of(line)) is not None)
