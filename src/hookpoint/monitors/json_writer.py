"""JSONWriter: what was logged, as lines of JSON that anything can read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback import Callback

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback import Options
    from hookpoint.core.records import Record
    from hookpoint.core.run import Run

EVENTS = "events.jsonl"
OWN_KEYS = ("step", "epoch", "time", "at", "event")
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JSONWriter(Callback):
    """Append what is logged to `filename` in the workdir, one line of JSON per record, and what happens to events.jsonl.

        {"step": 50, "epoch": 1, "time": 1731664800.125, "at": "step", "loss": 0.6931, "accuracy": 0.5}

    `at` tells the mean since the last log step ("step") from that of a whole pass ("epoch") and from single values
    ("value"). JSON knows no NaN and no infinity: they are the strings "nan", "inf" and "-inf", which `read_scalars` turns
    back. A metric that is called like one of our own keys gets a `values/` in front: `values/time`.

    Lines are on their way to the disk when a batch of records has come. A line that a kill or a full disk tore is cut off
    before the next is written; a resumed run first cuts what was written after the step it starts from. Without a workdir,
    and for a validation or prediction that is no part of a run, it does nothing.

    Listens to on_run_begin, on_records and on_run_end. Keeps nothing in the checkpoint. Runs on the chief, and never ends a
    run. A step pays nothing.

    >>> loop = Loop([JSONWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"

    def __init__(self, filename: str = "scalars.jsonl", **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.filename = filename
        self._in_run = False
        self._cut_after: int | None = None

    def on_run_begin(self, run: Run) -> None:
        self._in_run = True
        self._cut_after = run.step if run.resuming else None

    def on_run_end(self) -> None:
        self._in_run = False

    def on_records(self, records: list[Record], run: Run) -> None:
        if run.workdir is None or not self._in_run:
            return
        folder = Path(run.workdir)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if self._cut_after is not None:
            for name in (self.filename, EVENTS):
                cut_after(folder / name, self._cut_after)
            self._cut_after = None
        append(folder / self.filename, [_scalars_row(record) for record in records if record.kind == "scalars"])
        append(folder / EVENTS, [_event_row(record) for record in records if _is_event(record)])


def read_scalars(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a file that JSONWriter wrote, the oldest first, with NaN and infinities as floats again.

    The last line is left out while it is not whole: a run may be writing it, or was killed while it did. Any other line
    that is no JSON is an error that names it.
    """
    rows = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{os.fspath(path)}, line {number} is no line of JSON: {error}") from None
            rows.append({key: _read(value) if key not in OWN_KEYS else value for key, value in row.items()})
    return rows


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add a line for each row, after the last whole line there is."""
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    if lines:
        with open(path, "a+b") as file:
            _cut_torn_line(file)
            file.write(lines.encode())


def cut_after(path: Path, step: int) -> None:
    """Drop the lines of later steps, from the first one on."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        _cut_torn_line(file)
        file.seek(0)
        end = 0
        for line in file:
            if _step_of(line) > step:
                break
            end += len(line)
        file.truncate(end)


def _step_of(line: bytes) -> int:
    try:
        return int(json.loads(line)["step"])
    except (KeyError, TypeError, ValueError):  # not ours: it stays
        return -1


def _cut_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def _scalars_row(record: Record) -> dict[str, Any]:
    values = {_key(name): _plain(value) for name, value in record.scalars().items()}
    return {"step": record.step, "epoch": record.epoch, "time": round(record.time, 3), "at": record.at, **values}


def _is_event(record: Record) -> bool:
    return record.kind == "event" and "epoch_end" not in record.values  # that one only tells monitors to close an epoch


def _event_row(record: Record) -> dict[str, Any]:
    ((event, fields),) = record.values.items()
    values = {_key(name): _plain(value) for name, value in fields.items()}
    return {"step": record.step, "epoch": record.epoch, "time": round(record.time, 3), "event": event, **values}


def _key(name: str) -> str:
    return f"values/{name}" if name in OWN_KEYS else name


def _plain(value: Any) -> Any:
    """Return a value as JSON knows it; what it does not know becomes a string."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value)


def _read(value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
