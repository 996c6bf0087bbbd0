"""WideTable: read scalars.jsonl as one row per (step, iteration, epoch, at), in two passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder._scalars_file import valid_records
from hookpoint.run_folder.json_records import number_of
from hookpoint.storage.json_rows import OWN_KEYS

KEYS = ("step", "iteration", "epoch", "at", "time")  # files from older releases have no "iteration" key


class WideTable:
    """The rows of scalars.jsonl. The first pass finds the columns, and the second yields the rows.

    The file is never loaded into memory as a whole.

    Records with the same step, iteration, epoch and `at` form one row. If a metric was logged twice, the last value is used.
    The row has the time of its last record. Records appended between the passes are left out. Lines that are not records
    raise BadLines.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._size_bytes = path, path.stat().st_size
        self.columns = self._find_columns()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in file order. A row has no key for a column without a value."""
        moment: tuple[Any, ...] | None = None
        open_rows: dict[str, dict[str, Any]] = {}  # the rows for the current step, iteration and epoch, by `at`
        for record in self._records():
            now = record["step"], record.get("iteration"), record["epoch"]
            if now != moment:
                yield from open_rows.values()
                open_rows, moment = {}, now
            at = record["at"]
            row = open_rows.get(at)
            if row is None:
                row = open_rows[at] = {key: record[key] for key in KEYS if key in record}
            row["time"] = record["time"]
            for name, raw in record.items():
                if type(raw) is float and name != "event":  # most values, including "time", are floats
                    row[name] = raw
                elif name not in OWN_KEYS and (value := number_of(raw)) is not None:
                    row[name] = value
        yield from open_rows.values()

    def _find_columns(self) -> tuple[str, ...]:
        names: dict[str, None] = {}  # a dict instead of a set, to keep the order of appearance
        known: set[str] = set(OWN_KEYS) - {"iteration"}
        for record in self._records():
            if not known.issuperset(record):
                new = [name for name in record if name not in known]
                new = [name for name in new if name in KEYS or number_of(record[name]) is not None]
                names.update(dict.fromkeys(new))
                known.update(new)
        keys = [key for key in KEYS if key != "iteration" or key in names]
        return (*keys, *(name for name in names if name not in KEYS))

    def _records(self) -> Iterator[dict[str, Any]]:
        with open_plain(self._path) as file:
            yield from valid_records(self._path, line_batches(file, self._size_bytes))
