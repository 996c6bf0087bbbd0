"""CSVLogger: one CSV row per epoch, or per log step."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Unpack

from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, BadOption
from hookpoint.core.log.records import Record
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.monitors._csv_table import CsvTable, Row
from hookpoint.monitors._row_values import EpochValues, StepValues
from hookpoint.monitors._workdir_file import FileMonitor, file_name
from hookpoint.storage.disk import disk

logger = logging.getLogger("hookpoint")


class CSVLogger(FileMonitor):
    """Write one CSV row per epoch to a file in the workdir.

        epoch,accuracy,loss,val_loss
        1,0.5,0.6931471805599453,0.71
        2,0.75,0.41,

    filename: A plain file name in the workdir.
    separator: One character.
    append: What a new run does with an existing file. None renames it to `log.1.csv` and so on, True appends to it, and False
        replaces it, as in Keras.
    rows: "epoch" for one row per epoch, with the means over training and validation passes and the values logged between
        passes. Values that are logged after the last epoch get a separate row, with the number of that epoch. "step" for
        one row per step at which values are logged. Such a row contains the step, the epoch, the means since the last log step
        (`log_every` of the Runner or Loop), and validation results and other values logged at this step.

    A metric that appears later gets a new column. Missing values are empty cells. A metric called "epoch" becomes
    "values/epoch". A resumed run truncates the file to the rows that existed at the checkpoint, so that each epoch appears
    once. Without a workdir, the monitor does nothing.

    >>> with Loop([CSVLogger()], workdir="mine", monitors=[]) as run:
    ...     for epoch in run.epochs(2):
    ...         run.log(loss=1 / epoch)
    >>> print(Path("mine/log.csv").read_text())
    epoch,loss
    1,1.0
    2,0.5
    """

    ranks = "chief"
    on_error = "warn"
    keeps: ClassVar[str] = "the number of rows, and the values of the current epoch"
    step_cost: ClassVar[str] = "nothing; a checkpoint waits until the file is on disk"

    _writing = Lock()  # the monitor's thread writes records while the training thread saves checkpoints

    def __init__(
        self,
        filename: str = "log.csv",
        separator: str = ",",
        append: bool | None = None,
        *,
        rows: str = "epoch",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n\0' or separator.isalnum():
            raise BadArgument(f"CSVLogger: separator must be one character, got {separator!r}.", choose="',', ';' or '\\t'")
        if rows not in ("epoch", "step"):
            raise BadOption("CSVLogger", "rows", rows, ("epoch", "step"))
        self.filename = file_name("CSVLogger", filename, "log.csv")
        self.rows = rows
        self.separator = separator
        self.append = append
        self._table: CsvTable | None = None
        self._rows: int | None = None
        self._new_values = StepValues if rows == "step" else EpochValues
        self._values = self._new_values()
        self._unwritten: list[Row] = []
        self._is_begun = self._is_resumed = False

    def on_run_begin(self, run: Run) -> None:
        self._table = None
        self.check_own_file(run)
        self._table = None if run.workdir is None else CsvTable(Path(run.workdir) / self.filename, self.separator)
        self._is_begun, self._is_resumed = False, run.resuming
        self._unwritten = []
        self._values, self._rows = self._new_values(machine_of(run).clocks.epochs_done), None
        if not run.resuming:
            self._rows = 0
            if self._table is not None:  # now, so that a resumed run never takes an older file for its own
                self._rows = len(self._previous_rows(self._table))

    def on_records(self, records: list[Record]) -> None:
        if self._table is None:
            return
        for record in records:
            self._add(self._values.take_restored(record, self._run))
            self._add(self._values.take(record))
        self._write(self._table)

    def on_run_end(self, run: Run) -> None:
        if self._table is not None:
            self._add(self._values.last(run))
            self._write(self._table)
        self._table = None

    def _add(self, row: Mapping[str, float] | None) -> None:
        if row:
            numbers = {name: str(row[name]) for name in self._values.keys}
            self._unwritten.append({**numbers, **{name: repr(row[name]) for name in sorted(row) if name not in numbers}})

    def state_dict(self) -> dict[str, Any]:
        if self._table is not None:
            try:
                with self._writing:
                    self._table.sync()
            except OSError as error:
                logger.warning("%s may not be on disk: %s; a resumed run may lose rows", self.filename, error)
        rows = {} if self._rows is None else {"rows": self._rows}
        return {**rows, **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = state.get("rows")
        self._values.load_state_dict(state, self._run)

    def _write(self, table: CsvTable) -> None:
        if not self._unwritten:
            return
        with self._writing:
            if not self._is_begun:
                os.makedirs(table.path.parent, mode=0o700, exist_ok=True)
                rows = self._previous_rows(table)
                table.replace(rows, [*table.columns, *self._values.keys] if rows else self._values.keys)
                self._is_begun = True
            table.append(self._unwritten)
            self._unwritten, self._rows = [], table.rows

    def _previous_rows(self, table: CsvTable) -> list[Row]:
        """Return the rows that this run keeps from an existing file.

        If the run does not append to the file, the file is renamed and no rows are kept. The same happens if the first
        column is not "epoch" or, with rows="step", if the first columns are not "step" and "epoch". With append=False, a
        new run keeps no rows either, but the file is not renamed.
        """
        is_replaced = self.append is False and not self._is_resumed
        if is_replaced or not disk.exists(table.path):
            return []
        rows = table.read()
        keys = self._values.keys
        if tuple(table.columns[: len(keys)]) != keys or not (self._is_resumed or self.append):
            table.rotate()
            return []
        if not self._is_resumed:
            return rows
        return rows[: self._rows] if self._rows is not None else before_row(rows, self._unwritten[0], keys[0])


def before_row(rows: list[Row], row: Row, number: str) -> list[Row]:
    """Return the rows before `row`: drop the last rows as long as their epoch or step is not lower than that of `row`."""
    end = len(rows)
    while end and rows[end - 1][number].isdecimal() and int(rows[end - 1][number]) >= int(row[number]):
        end -= 1
    return rows[:end]
