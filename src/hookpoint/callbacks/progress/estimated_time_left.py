"""EstimatedTimeLeft: when the run will be over."""

from __future__ import annotations

import statistics
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.callbacks._shared.progress_view import clock
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class EstimatedTimeLeft(Callback):
    """Print and log how long the epochs that are left will take, from the time that the last `last_k_epochs` took.

    The time of an epoch is all of it, from the end of the one before: validation, checkpoints and callbacks are part of what is
    left. `median` takes their median, which one slow epoch does not change; otherwise it is their mean. Epochs that were cut
    short do not count. Without a number of epochs to reach, and after the last one, it says nothing.

    Listens to on_run_begin and on_epoch_end. Reads the run's clock, logs `time_left_seconds`. Keeps the times of these epochs
    in the checkpoint, and when the last one ended by that clock, which stands still while nothing runs: of an epoch that was
    resumed in its middle both parts count. Runs on the chief. A step pays nothing.

    >>> EstimatedTimeLeft(last_k_epochs=3, median=False)  # doctest: +ELLIPSIS
    <...EstimatedTimeLeft object at ...>
    """

    ranks = "chief"
    may_write = ("time_left_seconds",)

    def __init__(self, last_k_epochs: int = 5, median: bool = True, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.last_k_epochs = whole("EstimatedTimeLeft", "last_k_epochs", last_k_epochs, least=1)
        self.median = median
        self._epochs: list[float] = []
        self._ended_at: float | None = None

    def on_run_begin(self, run: Run) -> None:
        if not run.resuming:
            self._epochs, self._ended_at = [], run.elapsed

    def on_epoch_end(self, run: Run) -> None:
        now = run.elapsed
        if self._ended_at is not None and run.epoch_complete:  # None where a resumed run has this callback for the first time
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
