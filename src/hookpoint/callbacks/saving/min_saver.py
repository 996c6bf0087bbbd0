"""MinSaver: keep the checkpoint with the least value of a metric."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from hookpoint.callbacks.saving._best_saver import BestSaver
from hookpoint.core.callback.callback import Options


class MinSaver(BestSaver):
    """Save whenever a metric is lower than ever, as `checkpoints/best-<metric>/`; with `reverse`, higher than ever.

    `filename` replaces the metric in the name. A value has to be strictly better; NaN never is. A missing metric is an
    error. It counts at the moment it was measured at: where validation does not run at the end of
    epochs, `.when(...)` moves the saver to where it does. A validation inside a training iteration is looked at right there;
    its checkpoint is written when the iteration ends. It needs no ModelSaver beside it.

    Triggered at the end of each complete epoch, after those that write the metric. Listens to on_val_epoch_end for validations
    inside a training pass. Reads `monitor_stat`, sends the event "best" with metric, value and previous; the manifest has the
    value, too. Keeps the best value and its moment in the checkpoint. Runs on all ranks. Costs one comparison per trigger, and
    a checkpoint for a new best.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> saver = MinSaver("val-error-top1")
    >>> saver.name, saver.tag
    ('MinSaver(val-error-top1)', 'best-val-error-top1')
    """

    def __init__(
        self,
        monitor_stat: str,
        reverse: bool = False,
        filename: str | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(monitor_stat, "max" if reverse else "min", filename, checkpoint_dir, **options)
