"""MergeAllSummaries: log the summaries registered with `run.summary`."""

from __future__ import annotations

from typing import Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import Every


class MergeAllSummaries(Callback):
    """Call each function registered with `run.summary(name, function)` and log its value under its name.

    Triggered at the end of each complete epoch and, if `period` is above 0, every `period` steps; `.when(...)` replaces both.
    Values may be tensors on a device. Training does not wait for them. If a function returns None, nothing is logged. Such a
    function can send an image or a histogram itself. A value belongs to the step at which it is computed, and is never
    averaged. Runs on all ranks, so a function may use collectives.

    >>> with Loop([MergeAllSummaries()]) as run:
    ...     run.summary("temperature", lambda: 36.6)
    ...     for epoch in run.epochs(1):
    ...         for batch in run.batches([1, 2, 3]):
    ...             pass
    ...     run.metrics["temperature"]
    36.6
    """

    step_cost = "nothing; with a `period`, one comparison"

    def __init__(self, period: int = 0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if integer("MergeAllSummaries", "period", period):
            self.when(Every(steps=period) | Every(epochs=1))

    def on_trigger(self, run: Run) -> None:
        for name, function in list(run.summaries.items()):
            value = function()
            if value is not None:
                run.put_scalar(name, value)
