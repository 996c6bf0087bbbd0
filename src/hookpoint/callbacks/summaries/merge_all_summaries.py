"""MergeAllSummaries: log what was registered with `run.summary`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hookpoint.core.callback.callback import Callback
from hookpoint.core.schedule.when import Every

if TYPE_CHECKING:
    from typing import Unpack

    from hookpoint.core.callback.callback import Options
    from hookpoint.core.run.run import Run


class MergeAllSummaries(Callback):
    """Call each function registered with `run.summary(name, function)` and log its value under its name.

    Triggered at the end of each complete epoch, and every `period` steps where that is above 0; `.when(...)` replaces both.
    Values may be tensors on a device: nothing waits for them. A value of None is not logged, so that a function may send an
    image or a histogram instead. A value belongs to the step at which it is computed, and is never averaged. Keeps
    nothing in the checkpoint. Runs on all ranks, so that a function may talk to the others. A step pays nothing, with a
    `period` one integer comparison.

    >>> with Loop([MergeAllSummaries()]) as run:
    ...     run.summary("temperature", lambda: 36.6)
    ...     for epoch in run.epochs(1):
    ...         for batch in run.batches([1, 2, 3]):
    ...             pass
    ...     run.metrics["temperature"]
    36.6
    """

    def __init__(self, period: int = 0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not isinstance(period, int) or period < 0:
            raise ValueError(f"MergeAllSummaries(period=...) takes an integer, 0 or more; got {period!r}")
        if period:
            self.when(Every(steps=period) | Every(epochs=1))

    def on_trigger(self, run: Run) -> None:
        for name, function in list(run.summaries.items()):
            value = function()
            if value is not None:
                run.put_scalar(name, value)
