"""History: what was logged, epoch by epoch, to look at when the run is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hookpoint.core.callback.callback import Callback
from hookpoint.monitors._epoch_values import EpochValues

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.log.records import Record
    from hookpoint.core.run.run import Run


class History(Callback):
    """Keep the values of each epoch in lists: `history` has one for each name, `epoch` the numbers of the epochs, from 1.

    A list of `history` has a value for each epoch in which one came, as in Keras: that of a validation in every fifth epoch is
    a fifth as long. Epochs count from 0 in Keras. An epoch that was cut short counts too.

    Listens to on_run_begin, on_records and on_run_end, off the training thread: an epoch is there a moment after its end, and
    all of them are when the run is over. Keeps all of it in the checkpoint, so that a resumed run goes on with it. Runs on
    the chief, and never ends a run. A step pays nothing, an epoch for one float per name, which is kept.

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

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}
        self._values = EpochValues()
        self._in_run = False

    def on_run_begin(self, run: Run) -> None:
        self._in_run = True
        if not run.resuming:
            self.epoch, self.history, self._values = [], {}, EpochValues()

    def on_records(self, records: list[Record]) -> None:
        if not self._in_run:
            return
        for record in records:
            row = self._values.take(record)
            if row is not None:
                epoch, values = row
                for name, value in values.items():
                    self.history.setdefault(name, []).append(value)
                self.epoch.append(epoch)

    def on_run_end(self) -> None:
        self._in_run = False

    def state_dict(self) -> dict[str, Any]:
        history = {name: list(values) for name, values in self.history.items()}
        return {"epoch": list(self.epoch), "history": history, "gathered": dict(self._values.gathered)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = list(state["epoch"])
        self.history = {name: list(values) for name, values in state["history"].items()}
        self._values.gathered = dict(state["gathered"])
