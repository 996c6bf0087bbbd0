"""JSONWriter: what was logged, as lines of JSON that anything can read."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO

from hookpoint.core.callback.callback import Callback
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.plain_values import plain
from hookpoint.core.text.secrets import masked
from hookpoint.storage.disk.whole_lines import end_of_whole_lines, ends_a_line

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.log.records import Record
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")

EVENTS = "events.jsonl"
OWN_KEYS = ("step", "iteration", "epoch", "time", "at", "event")
PIECE_BYTES = 2**16
LOOK_BACK_BYTES = 2**18
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JSONWriter(Callback):
    """Append what is logged to `filename` in the workdir, one line of JSON per record, and what happens to events.jsonl.

        {"step": 50, "iteration": 50, "epoch": 1, "time": 1731664800.125, "at": "step", "loss": 0.6931, "accuracy": 0.5}

    `at` tells the mean since the last log step ("step") from that of a whole pass ("epoch") and from single values
    ("value"). JSON knows no NaN and no infinity: they are the strings "nan", "inf" and "-inf", which `read_scalars` turns
    back. A metric that is called like one of our own keys gets a `values/` in front: `values/time`.

    Lines are on their way to the disk when a batch of records has come. A line that a kill or a full disk tore is cut off
    before the next is written. A resumed run first cuts `filename` back to where it was when the checkpoint was made, so that
    each value is there once; events.jsonl is the story of what happened, and is never cut. Without a workdir, and for a
    validation or prediction that is no part of a run, it does nothing.

    Listens to on_run_begin, on_records and on_run_end. Keeps the size of `filename` in the checkpoint. Runs on the chief, and
    never ends a run. A step pays nothing; a checkpoint waits until the files are on disk.

    >>> loop = Loop([JSONWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"

    _writing = Lock()  # records come on a thread of their own, checkpoints are made on the one that trains

    def __init__(self, filename: str = "scalars.jsonl", **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.filename = filename
        self._folder: Path | None = None
        self._in_run = False
        self._cut_after: Moment | None = None
        self._sizes: dict[str, int] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._in_run = True
        self._folder = None if run.workdir is None else Path(run.workdir)
        self._cut_after = run.moment if run.resuming else None
        self._sizes = None

    def on_run_end(self) -> None:
        self._in_run = False

    def on_records(self, records: list[Record]) -> None:
        folder = self._folder
        if folder is None or not self._in_run:
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        scalars = [_scalars_row(record) for record in records if record.kind == "scalars"]
        events = [_event_row(record) for record in records if _is_event(record)]
        with self._writing:
            path = folder / self.filename
            if self._cut_after is not None:
                if path.exists():
                    os.truncate(path, self._end(path))
                self._cut_after = self._sizes = None
            append(path, scalars)
            append(folder / EVENTS, events)

    def state_dict(self) -> dict[str, Any]:
        if self._folder is None:
            return {} if self._sizes is None else {"sizes": dict(self._sizes)}
        try:
            with self._writing:
                for path in (self._folder / self.filename, self._folder / EVENTS, self._folder):
                    _sync(path)
                return {"sizes": {self.filename: self._end(self._folder / self.filename)}}
        except OSError as error:
            logger.warning("%s is not known to be on disk: %s; a resumed run may lose lines of it", self.filename, error)
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sizes = dict(state["sizes"]) if "sizes" in state else None

    def _end(self, path: Path) -> int:
        """Return where the file ends, or will end when it is cut."""
        if not path.exists():
            return 0
        with open(path, "rb") as file:
            if self._cut_after is None:
                return end_of_whole_lines(file)
            return end_of_kept_lines(file, self._cut_after, (self._sizes or {}).get(self.filename))


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
            file.truncate(end_of_whole_lines(file))
            file.write(lines.encode())


def end_of_kept_lines(file: BinaryIO, moment: Moment, size: int | None) -> int:
    """Return where to cut a file for a run that resumes from a moment: at a size, or else before the first later line.

    The size is that of the file when the checkpoint was made. Where no line ends there, it is the size of another file. Later
    lines are looked for from the end, until there is none in 256 KiB: a run writes its lines in order.
    """
    whole = end_of_whole_lines(file)
    if size is not None and size <= whole and (size == 0 or ends_a_line(file, size)):
        return size
    end = whole
    for start, line in _backwards(file, whole):
        if _is_after(line, moment):
            end = start
        elif end - start > LOOK_BACK_BYTES:
            break
    return end


def _backwards(file: BinaryIO, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield each line before a place where one ends, the last one first, with where it begins."""
    start, rest = end, b""
    while start > 0:
        size = min(start, PIECE_BYTES)
        start -= size
        file.seek(start)
        lines = (file.read(size) + rest).split(b"\n")
        rest = lines[0]  # which may begin further in front
        position = start + sum(map(len, lines)) + len(lines) - 1
        for line in reversed(lines[1:]):
            position -= len(line)
            if position < end:
                yield position, line
            position -= 1
    if rest:
        yield 0, rest


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on disk."""
    if path.exists():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_after(line: bytes, moment: Moment) -> bool:
    try:
        return Moment.of(json.loads(line)).is_after(moment)
    except (AttributeError, KeyError, TypeError, ValueError):  # not ours: it stays
        return False


def _scalars_row(record: Record) -> dict[str, Any]:
    values = {_key(name): plain(value) for name, value in record.scalars().items()}
    return {**_clocks(record), "at": record.at, **values}


def _is_event(record: Record) -> bool:
    return record.kind == "event" and "epoch_end" not in record.values  # that one only tells monitors to close an epoch


def _event_row(record: Record) -> dict[str, Any]:
    ((event, fields),) = record.values.items()
    values = masked({_key(name): plain(value) for name, value in fields.items()})
    return {**_clocks(record), "event": event, **values}


def _clocks(record: Record) -> dict[str, Any]:
    return {"step": record.step, "iteration": record.iteration, "epoch": record.epoch, "time": round(record.time, 3)}


def _key(name: str) -> str:
    return f"values/{name}" if name in OWN_KEYS else name


def _read(value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value
