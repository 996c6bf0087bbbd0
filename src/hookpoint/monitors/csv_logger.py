"""CSVLogger: a line of a table for each epoch, or each log step."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, BadOption
from hookpoint.monitors._csv_table import CsvTable, Row
from hookpoint.monitors._epoch_values import EPOCH, EpochValues
from hookpoint.monitors._step_values import STEP, StepValues
from hookpoint.storage.disk import disk

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.log.records import Record
    from hookpoint.core.run.run import Run

logger = logging.getLogger("hookpoint")


class CSVLogger(Callback):
    """Write a line for each epoch to a table in the workdir, which spreadsheets and pandas read.

        epoch,accuracy,loss,val_loss
        1,0.5,0.6931471805599453,0.71
        2,0.75,0.41,

    Columns are the epoch, from 1, and the names of what was logged: means of training and validation passes, and values between
    passes, not those of log steps. A name that comes later gets a column then, and what is missing is empty. A metric called
    "epoch" is `values/epoch`. The file is `filename` in the workdir.

    With `rows="step"` there is a line for each step at which something was logged: its number, its epoch, the means since the
    last log step (`log_every` of the Runner or Loop), and validation results and other values in the line of the step they
    came at.

    A resumed run goes on with the table, cut back to what the checkpoint knew, so that each epoch is there once. A fresh run
    begins a new one, and moves one that is there aside, to `log.1.csv` and so on; `append=True` goes on with it, and
    `append=False` always replaces it, as in Keras. Without a workdir it does nothing.

    Listens to on_run_begin, on_records and on_run_end, off the training thread. Keeps the number of rows, and what the running
    epoch has logged, in the checkpoint. Runs on the chief, and never ends a run. A step pays nothing; a checkpoint waits until
    the file is on disk.

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

    _writing = Lock()  # records come on a thread of their own, checkpoints are made on the one that trains

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
        if not isinstance(filename, str) or filename in ("", ".", "..") or any(one in filename for one in "/\\\0"):
            raise BadArgument(
                f"CSVLogger(filename={filename!r}) is no plain name; the file is in the workdir.", write='"log.csv"'
            )
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n\0' or separator.isalnum():
            raise BadArgument(f"CSVLogger(separator={separator!r}) parts nothing.", choose="',', ';', '\\t' or the like")
        if rows not in ("epoch", "step"):
            raise BadOption("CSVLogger", "rows", rows, ("epoch", "step"))
        self.filename = filename
        self.rows = rows
        self.separator = separator
        self.append = append
        self._table: CsvTable | None = None
        self._rows: int | None = None
        self._values = self._new_values()
        self._unwritten: list[Row] = []
        self._is_begun = self._is_resumed = False

    def on_run_begin(self, run: Run) -> None:
        self._table = None if run.workdir is None else CsvTable(Path(run.workdir) / self.filename, self.separator)
        self._is_begun, self._is_resumed = False, run.resuming
        self._unwritten = []
        if not run.resuming:
            self._values, self._rows = self._new_values(), 0
            if self._table is not None and self.append:
                self._rows = len(self._table.read())

    def on_records(self, records: list[Record]) -> None:
        if self._table is None:
            return
        for record in records:
            row = self._values.take(record)
            if isinstance(row, tuple):
                row = {EPOCH: row[0], **row[1]}
            self._add(row)
        self._write_all(self._table)

    def on_run_end(self) -> None:
        if self._table is not None and isinstance(self._values, StepValues):
            self._add(self._values.finish())
            self._write_all(self._table)
        self._table = None

    def _new_values(self) -> EpochValues | StepValues:
        return StepValues() if self.rows == "step" else EpochValues()

    def _add(self, row: Mapping[str, float] | None) -> None:
        if row:
            numbers = {name: str(row[name]) for name in self._numbers}
            self._unwritten.append({**numbers, **{name: repr(row[name]) for name in sorted(row) if name not in numbers}})

    @property
    def _numbers(self) -> list[str]:
        return [STEP, EPOCH] if self.rows == "step" else [EPOCH]

    def _write_all(self, table: CsvTable) -> None:
        if self._unwritten:
            with self._writing:
                self._write(table)

    def state_dict(self) -> dict[str, Any]:
        if self._table is not None:
            try:
                with self._writing:
                    self._table.sync()
            except OSError as error:
                logger.warning("%s is not known to be on disk: %s; a resumed run may lose rows", self.filename, error)
        rows = {} if self._rows is None else {"rows": self._rows}
        return {**rows, "gathered": dict(self._values.gathered)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = state.get("rows")
        self._values.gathered = dict(state["gathered"])

    def _write(self, table: CsvTable) -> None:
        if not self._is_begun:
            os.makedirs(table.path.parent, mode=0o700, exist_ok=True)
            kept = self._kept(table)
            table.replace(kept, [*table.columns, *self._numbers] if kept else self._numbers)
            self._is_begun = True
        table.append(self._unwritten)
        self._unwritten = []
        self._rows = table.rows

    def _kept(self, table: CsvTable) -> list[Row]:
        """Return the rows of the file that this run goes on with; what is no table of such rows is moved aside."""
        if self.append is False or not disk.exists(table.path):
            return []
        rows = table.read()
        if table.columns[: len(self._numbers)] != self._numbers or not (self._is_resumed or self.append):
            table.move_aside()
            return []
        if not self._is_resumed:
            return rows
        return rows[: self._rows] if self._rows is not None else before_row(rows, self._unwritten[0], self._numbers[0])


def before_row(rows: list[Row], row: Row, number: str) -> list[Row]:
    """Return rows without those at the end that are of the same epoch or step as this row, or a later one."""
    kept = len(rows)
    while kept and rows[kept - 1][number].isdecimal() and int(rows[kept - 1][number]) >= int(row[number]):
        kept -= 1
    return rows[:kept]
