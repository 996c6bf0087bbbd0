"""History: the values of each epoch, as lists."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.log.records import Record
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run
from hookpoint.monitors._row_values import EPOCH, EpochValues


class History(Callback):
    """Collect the values of each epoch: `history` maps each metric to a list, and `epoch` lists the epoch numbers.

    As in Keras, a list has no entry for an epoch without a value: if you validate every fifth epoch, the `val_loss` list is a
    fifth as long. Unlike in Keras, epochs are counted from 1. Epochs that were cut short are included. Values that are logged
    after the last epoch are appended when the run ends. The lists are complete when the run has ended; during the run, an epoch
    appears shortly after its end.

    >>> history = History()
    >>> with Loop([history]) as run:
    ...     for epoch in run.epochs(2):
    ...         for batch in run.batches([1.0, 3.0]):
    ...             run.log(loss=batch / epoch)
    >>> history.epoch, history.history
    ([1, 2], {'loss': [2.0, 1.0]})
    """

    ranks = "chief"
    on_error = "warn"
    keeps: ClassVar[str] = "all values so far"
    step_cost: ClassVar[str] = "nothing; each epoch stores one float per metric"

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}
        self._values = EpochValues()
        self._in_run = False

    def on_run_begin(self, run: Run) -> None:
        self._in_run = True
        self.epoch, self.history, self._values = [], {}, EpochValues(machine_of(run).clocks.epochs_done)

    def on_records(self, records: list[Record]) -> None:
        if not self._in_run:
            return
        for record in records:
            if (row := self._values.take_restored(record, self._run)) is not None:
                del row[EPOCH]
                self._append(row)
            row = self._values.take(record)
            if row is not None:
                self.epoch.append(int(row.pop(EPOCH)))
                self._append(row)

    def on_run_end(self, run: Run) -> None:
        if self._in_run and (row := self._values.last(run)) is not None:
            del row[EPOCH]
            self._append(row)
        self._in_run = False

    def _append(self, row: dict[str, float]) -> None:
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)

    def state_dict(self) -> dict[str, Any]:
        history = {name: list(values) for name, values in self.history.items()}
        return {"epoch": list(self.epoch), "history": history, **self._values.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = list(state["epoch"])
        self.history = {name: list(values) for name, values in state["history"].items()}
        self._values.load_state_dict(state, self._run)
