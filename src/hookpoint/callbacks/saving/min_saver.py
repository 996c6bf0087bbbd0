"""MinSaver: keep the checkpoint with the lowest value of a metric."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from hookpoint.callbacks._shared.saver import reject_path
from hookpoint.callbacks.saving._metric_saver import MetricSaver
from hookpoint.core.callback.callback import Options
from hookpoint.core.log.best import Best


class MinSaver(MetricSaver):
    """Save to `checkpoints/best-<metric>/` whenever a metric reaches a new minimum or, with `reverse`, a new maximum.

    `filename` replaces the metric in the folder's name; it is not a template. A new value must be strictly better than the best
    so far; NaN never counts as better. Raises if the metric is missing. Works without a ModelSaver. `async_save` works as in
    ModelSaver.

    Without a schedule, the saver also checks the metric at the end of epochs that are cut short with `break`.

    A new best is saved only while the model still has the weights that were validated. If validation does not run at the end of
    epochs, use `.when(...)` to trigger the saver after each validation pass. The result of a validation pass inside a training
    iteration is handled immediately, and its checkpoint is written when the iteration ends. With a step schedule, the value is
    the mean of the values logged since the last trigger.

    Reads `monitor_stat` after the callbacks that write this metric have run. Sends the event "best" with the fields `metric`,
    `value` and `previous`. The checkpoint's manifest contains the value.

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
        *,
        async_save: bool = True,
        **options: Unpack[Options],
    ) -> None:
        reject_path("MinSaver", "checkpoint_dir", checkpoint_dir)
        super().__init__("best", monitor_stat, Best("max" if reverse else "min"), filename, async_save=async_save, **options)
