"""JSONWriter: write records as lines of JSON."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, ClassVar, Unpack

from hookpoint.core.callback.callback import Options
from hookpoint.core.log.records import Record
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment
from hookpoint.core.text.plain_values import plain
from hookpoint.core.text.secrets import masked
from hookpoint.monitors._workdir_file import FileMonitor, earlier_monitors, file_name
from hookpoint.storage.checkpoint.layout import EVENTS, SCALARS
from hookpoint.storage.disk import disk
from hookpoint.storage.disk.complete_lines import end_of_complete_lines, ends_a_line, lines_backwards
from hookpoint.storage.json_rows import OWN_KEYS

logger = logging.getLogger("hookpoint")

LOOK_BACK_BYTES = 2**18


class JSONWriter(FileMonitor):
    """Append scalars to `filename` in the workdir, one line of JSON per record, and events to events.jsonl.

        {"step": 50, "iteration": 50, "epoch": 1, "time": 1731664800.125, "at": "step", "loss": 0.6931, "accuracy": 0.5}

    `at` is "step" for the mean since the last log step, "epoch" for the mean over a pass, and "value" for single values. NaN
    and infinity are written as the strings "nan", "inf" and "-inf"; `read_scalars` converts them back. A metric with the same
    name as another key gets the prefix `values/`, as in `values/time`.

    Records are written in batches, without waiting for the disk. If a killed process or a full disk leaves an incomplete line,
    that line is removed before the next one is written. A resumed run truncates `filename` to its size at the checkpoint, so
    that each value appears once. events.jsonl is a journal and is never truncated. If a run has several JSONWriters, each needs
    its own `filename`, and the first one writes the events. Without a workdir, and for a validation or prediction pass outside
    a run, the monitor does nothing.

    >>> loop = Loop([JSONWriter()], workdir="runs/mine")
    """

    ranks = "chief"
    on_error = "warn"
    keeps: ClassVar[str] = "the size of `filename`"
    step_cost: ClassVar[str] = "nothing; a checkpoint waits until the files are on disk"

    _writing = Lock()  # the monitor's thread writes records while the training thread saves checkpoints

    def __init__(self, filename: str = SCALARS, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.filename = file_name("JSONWriter", filename, SCALARS)
        self._writes_events = True
        self._folder: Path | None = None
        self._in_run = False
        self._cut_after: Moment | None = None
        self._sizes: dict[str, int] | None = None

    def on_run_begin(self, run: Run) -> None:
        self._in_run = True
        self._cut_after = run.moment if run.resuming else None
        self._sizes = None
        self._folder = None
        self._writes_events = not earlier_monitors(JSONWriter, self, run)
        self.check_own_file(run)
        self._folder = None if run.workdir is None else Path(run.workdir)

    def on_run_end(self) -> None:
        self._in_run = False

    def on_records(self, records: list[Record]) -> None:
        folder = self._folder
        if folder is None or not self._in_run:
            return
        os.makedirs(folder, mode=0o700, exist_ok=True)
        scalars = [_scalars_row(record) for record in records if record.kind == "scalars"]
        events = [_event_row(record) for record in records if record.kind == "event" and "epoch_end" not in record.values]
        with self._writing:
            path = folder / self.filename
            if self._cut_after is not None:
                if path.exists():
                    os.truncate(path, self._end(path))
                self._cut_after = self._sizes = None
            append(path, scalars)
            append(folder / EVENTS, events if self._writes_events else [])

    def state_dict(self) -> dict[str, Any]:
        if self._folder is None:
            return {} if self._sizes is None else {"sizes": dict(self._sizes)}
        try:
            with self._writing:
                for path in filter(Path.exists, (self._folder / self.filename, self._folder / EVENTS)):
                    disk.sync_file(path)
                if self._folder.exists():
                    disk.sync_folder(self._folder)
                return {"sizes": {self.filename: self._end(self._folder / self.filename)}}
        except OSError as error:
            logger.warning("%s may not be on disk: %s; a resumed run may lose lines", self.filename, error)
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sizes = dict(state["sizes"]) if "sizes" in state else None

    def _end(self, path: Path) -> int:
        """Return the size of the complete lines in the file. If a resumed run must truncate the file, return the new size."""
        if not path.exists():
            return 0
        with open(path, "rb") as file:
            if self._cut_after is None:
                return end_of_complete_lines(file)
            return end_of_kept_lines(file, self._cut_after, (self._sizes or {}).get(self.filename))


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append a line per row, after the last complete line."""
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    if lines:
        with open(path, "a+b") as file:
            file.truncate(end_of_complete_lines(file))
            file.write(lines.encode())


def end_of_kept_lines(file: BinaryIO, moment: Moment, size: int | None) -> int:
    """Return the offset at which a run that resumes from `moment` must truncate a file.

    `size` is the size of the file at the checkpoint. If a line ends at that position, return `size`. Otherwise, the size
    belongs to another file. In this case, return the offset of the first line that is later than `moment`. The search for this
    line goes backwards from the end of the file. It stops when it has found no later line in 256 KiB, because a run writes its
    lines in order.
    """
    complete = end = end_of_complete_lines(file)
    if size is not None and size <= complete and (size == 0 or ends_a_line(file, size)):
        return size
    for start, line in lines_backwards(file, complete):
        if _is_after(line, moment):
            end = start
        elif end - start > LOOK_BACK_BYTES:
            break
    return end


def _is_after(line: bytes, moment: Moment) -> bool:
    try:
        return Moment.of(json.loads(line)).is_after(moment)
    except (AttributeError, KeyError, TypeError, ValueError):  # JSONWriter did not write this line, so keep it
        return False


def _scalars_row(record: Record) -> dict[str, Any]:
    return {**_clocks(record), "at": record.at, **_plain(record.scalars())}


def _event_row(record: Record) -> dict[str, Any]:
    ((event, fields),) = record.values.items()
    return {**_clocks(record), "event": event, **masked(_plain(fields))}


def _clocks(record: Record) -> dict[str, Any]:
    return {"step": record.step, "iteration": record.iteration, "epoch": record.epoch, "time": round(record.time, 3)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"values/{name}" if name in OWN_KEYS else name: plain(value) for name, value in values.items()}
