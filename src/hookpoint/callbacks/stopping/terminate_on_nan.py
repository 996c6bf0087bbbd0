"""TerminateOnNaN: stop when the loss is NaN or infinite."""

from __future__ import annotations

import math
from typing import Unpack

from hookpoint.callbacks.stopping._loss_callback import Loss, LossCallback
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.run.run import Run


class TerminateOnNaN(LossCallback):
    """Stop the run when the loss of a training step is NaN or infinite; with `raise_error`, raise NonFiniteLoss instead.

    The run ends as it does after `run.stop`: on_train_epoch_end, on_epoch_end and on_run_end are called. If the weights are no
    longer finite, the last state is not saved, and the last good checkpoint remains the newest. A loss on the host is checked
    after its step. A loss on a GPU is checked when its copy to the host has finished. This takes at most about 50 steps. All
    losses of an epoch are checked by the end of the epoch. If the loss is a tuple, all of its losses are checked.

    Reads `run.loss` or, if it is not set, the value logged as "loss" in the same iteration. Iterations without a loss are
    skipped. Raises if no iteration has a loss. Sends the event "stop". You can resume the run afterwards.

    >>> with Loop([TerminateOnNaN()]) as run:
    ...     for batch in run.batches([0.5, float("nan"), 0.25]):
    ...         run.log(loss=batch)
    >>> run.step
    2
    """

    def __init__(self, raise_error: bool = False, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.raise_error = raise_error

    def check(self, run: Run, losses: list[Loss]) -> None:
        bad = next((loss for loss in losses if not math.isfinite(loss.value)), None)
        if bad is not None:
            if self.raise_error:
                raise NonFiniteLoss(bad.value, epoch=bad.epoch, step=bad.step, now=run.step)
            run.stop(f"{self.name or 'TerminateOnNaN'}: the loss is {bad.value} at step {bad.step}")
