"""Curves as CSV: yield all values of a metric, in chunks."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from itertools import islice
from pathlib import Path

from hookpoint.run_folder._plain_file import line_batches, open_plain
from hookpoint.run_folder.json_records import number_of, records_of
from hookpoint.storage.json_rows import OWN_KEYS

COLUMNS = ("step", "epoch", "time", "value")


def csv_lines(path: Path, name: str, at: str) -> Iterator[str]:
    """Yield the values of a metric as CSV, with a header, without loading the file into memory.

    If the file becomes unreadable while this function reads it, the CSV ends early.
    """
    yield _text([COLUMNS])
    if name in OWN_KEYS:
        return
    try:
        with open_plain(path) as file:
            for lines in line_batches(file):
                rows = [row for row in records_of(lines) if row is not None and row["at"] == at]
                values = [(row["step"], row["epoch"], row["time"], number_of(row.get(name))) for row in rows]
                yield _text([row for row in values if row[3] is not None])
    except OSError:
        return


def csv_lines_of_runs(runs: Sequence[tuple[str, Path]], name: str, at: str) -> Iterator[str]:
    """Yield the values of a metric in several runs as CSV, with each run's label in the first column."""
    yield _text([("run", *COLUMNS)])
    for label, path in runs:
        prefix = _text([(label,)]).removesuffix("\r\n")
        for lines in islice(csv_lines(path, name, at), 1, None):  # without the header
            yield "".join(f"{prefix},{line}" for line in lines.splitlines(keepends=True))


def _text(rows: list[tuple[object, ...]]) -> str:
    text = StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
