"""WideTable: what was logged as rows of one (step, iteration, epoch, at) each, read in two passes, never all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hookpoint.core.schedule.moment import Moment
from hookpoint.run_folder._plain_file import open_plain, whole_lines
from hookpoint.run_folder.scalars_file import OWN_KEYS, BadLines, number_of, record_of

KEYS = ("step", "iteration", "epoch", "at", "time")  # older files have no iteration


class WideTable:
    """The rows of scalars.jsonl by moment and `at`. The first pass finds the columns, the second yields the rows.

    Records of one moment (step, iteration, epoch) with the same `at` are one row; of a value that was logged twice the last one
    stands, and the time is that of the last record. What a run appends between the passes is left out. Raises BadLines where a
    line is no record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size_bytes = 0
        self.columns: tuple[str, ...] = ()
        self._find_columns()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows, in the order of the file: those columns only that have a value."""
        moment: Moment | None = None
        open_rows: dict[str, dict[str, Any]] = {}  # of the moment that is being read, by `at`
        for record in self._records():
            if (now := Moment.of(record)) != moment:
                yield from open_rows.values()
                open_rows, moment = {}, now
            row = open_rows.setdefault(record["at"], {key: record[key] for key in KEYS if key in record})
            row["time"] = record["time"]
            for name, given in record.items():
                if name not in OWN_KEYS and (value := number_of(given)) is not None:
                    row[name] = value
        yield from open_rows.values()

    def _find_columns(self) -> None:
        names: dict[str, None] = {}
        has_iteration = False
        bad: list[int] = []
        with open_plain(self._path) as file:
            self._size_bytes = os.fstat(file.fileno()).st_size
            for number, line in enumerate(whole_lines(file), 1):
                record = record_of(line)
                if record is None:
                    bad.append(number)
                    continue
                has_iteration |= "iteration" in record
                for name, given in record.items():
                    if name not in names and name not in OWN_KEYS and number_of(given) is not None:
                        names[name] = None
        if bad:
            raise BadLines(self._path, bad)
        self.columns = (*(key for key in KEYS if key != "iteration" or has_iteration), *names)

    def _records(self) -> Iterator[dict[str, Any]]:
        with open_plain(self._path) as file:
            yield from self._until_the_end(file)

    def _until_the_end(self, file: BinaryIO) -> Iterator[dict[str, Any]]:
        position = 0
        for line in whole_lines(file):
            position += len(line) + 1
            record = record_of(line)
            if position > self._size_bytes or record is None:
                return
            yield record
