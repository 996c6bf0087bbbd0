"""MaxSteps: stop after a number of optimizer steps."""

from __future__ import annotations

from typing import ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.knob import Knob
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Reached


class MaxSteps(Callback):
    """End the run after `n` optimizer steps, counted across resumes. The run counts as finished, not as stopped early.

    If the last step falls on the last batch of an epoch, the epoch is completed, including its validation. If it falls in the
    middle of an epoch, a run with a saver resumes from there once you raise `n`. A run that is already at step `n` stops
    immediately. Sends the event "stop".

    >>> with Loop([MaxSteps(3)]) as run:
    ...     for batch in run.batches(range(10)): print(batch)
    0
    1
    2
    """

    knobs = (Knob("n", int, low=0, about="total optimizer steps, counted across resumes"),)
    step_cost: ClassVar[str] = "one comparison"

    def __init__(self, n: int, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.n = integer("MaxSteps", "n", n)

    def on_run_begin(self, run: Run) -> None:
        if run.resuming and run.step >= self.n:
            logger.warning("%s: already at step %d, nothing to train; raise n to resume", self.name or "MaxSteps", run.step)
        self.on_epoch_end(run)

    def on_train_iter_end(self, run: Run) -> None:
        if run.step >= self.n and not _is_last_batch(run):
            self.on_epoch_end(run)

    def on_epoch_end(self, run: Run) -> None:
        if run.step >= self.n:
            run.stop(Reached(f"{self.name or 'MaxSteps'}: {run.step} steps are done"), same_on_all_ranks=True)


def _is_last_batch(run: Run) -> bool:
    progress = run.progress
    return progress is not None and run.batch_idx + 1 == progress.total
