"""EstimatedTimeLeft: estimate when the run ends."""

from __future__ import annotations

import statistics
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.callbacks._shared.progress_view import clock
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class EstimatedTimeLeft(Callback):
    """Print and log the time left in the run, estimated from its last `last_k_epochs` epochs.

    An epoch's time is measured from the end of the previous epoch, so it includes validation, checkpoints and callbacks. If an
    epoch is interrupted and resumed, the time between the interruption and the resume does not count. The estimate uses the
    median, which a single slow epoch hardly affects, or the mean with `median=False`. Epochs that are cut short do not count.
    Nothing is printed after the last epoch, or if the number of epochs is unknown.

    >>> EstimatedTimeLeft(last_k_epochs=3, median=False)  # doctest: +ELLIPSIS
    <...EstimatedTimeLeft object at ...>
    """

    ranks = "chief"
    may_write = ("time_left_seconds",)
    keeps: ClassVar[str] = "the durations of the last epochs"
    step_cost: ClassVar[str] = "nothing"

    def __init__(self, last_k_epochs: int = 5, median: bool = True, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.last_k_epochs = integer("EstimatedTimeLeft", "last_k_epochs", last_k_epochs, least=1)
        self.median = median
        self._epochs: list[float] = []
        self._ended_at: float | None = None

    def on_run_begin(self, run: Run) -> None:
        self._epochs, self._ended_at = [], None if run.resuming else run.elapsed

    def on_epoch_end(self, run: Run) -> None:
        now = run.elapsed
        if self._ended_at is not None and run.epoch_complete:  # None if the callback is new in a resumed run
            self._epochs = [*self._epochs, now - self._ended_at][-self.last_k_epochs :]
        self._ended_at = now
        left = 0 if run.max_epochs is None else run.max_epochs - run.epoch
        if left > 0 and self._epochs:
            seconds = left * (statistics.median if self.median else statistics.mean)(self._epochs)
            run.log(time_left_seconds=seconds)
            say(f"Estimated Time Left: {clock(seconds)}")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": {"epochs": list(self._epochs), "ended_at": self._ended_at}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epochs, self._ended_at = list(state["seconds"]["epochs"]), state["seconds"]["ended_at"]
