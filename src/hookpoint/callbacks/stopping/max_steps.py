"""MaxSteps: stop after so many optimizer steps."""

from __future__ import annotations

import logging
from typing import Unpack

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.run.run import Run
from hookpoint.core.run.verdicts import Reached

logger = logging.getLogger("hookpoint")


class MaxSteps(Callback):
    """End the run when `n` optimizer steps are done, counted across resumes: it is finished then, and not stopped early.

    Where the last of them is the last batch of an epoch, the epoch is finished, with its validation; where it is in the middle
    of one, a run with a saver goes on from there when `n` is higher. A run that has had its steps stops at once.

    Listens to on_run_begin, on_train_iter_end and on_epoch_end. Sends the event "stop". Keeps nothing in the checkpoint: the
    run's clock does. Runs on all ranks. A step pays a comparison.

    >>> with Loop([MaxSteps(3)]) as run:
    ...     for batch in run.batches(range(10)): print(batch)
    0
    1
    2
    """

    def __init__(self, n: int, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.n = whole("MaxSteps", "n", n)

    def on_run_begin(self, run: Run) -> None:
        if run.resuming and run.step >= self.n:
            logger.warning(
                "%s: %d steps are done, and nothing is trained; a higher n goes on", self.name or "MaxSteps", run.step
            )
        self._stop_if_over(run)

    def on_train_iter_end(self, run: Run) -> None:
        if run.step >= self.n and not _is_last_batch(run):
            self._stop_if_over(run)

    def on_epoch_end(self, run: Run) -> None:
        self._stop_if_over(run)

    def _stop_if_over(self, run: Run) -> None:
        if run.step >= self.n:
            run.stop(Reached(f"{self.name or 'MaxSteps'}: {run.step} steps are done"), same_on_all_ranks=True)


def _is_last_batch(run: Run) -> bool:
    progress = run.progress
    return progress is not None and progress.total is not None and run.batch_idx + 1 >= progress.total
