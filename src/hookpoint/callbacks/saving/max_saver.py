"""MaxSaver: keep the checkpoint with the greatest value of a metric."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from hookpoint.callbacks.saving._best_saver import BestSaver
from hookpoint.core.callback.callback import Options


class MaxSaver(BestSaver):
    """Save whenever a metric is higher than ever, as `checkpoints/best-<metric>/`: MinSaver, the other way round.

    Triggered at the end of each complete epoch, after those that write the metric. Reads `monitor_stat`, sends the event
    "best" with metric, value and previous. Keeps the best value and its moment in the checkpoint. Runs on all ranks. Costs one
    comparison per trigger, and a checkpoint for a new best.

    >>> MaxSaver("val_accuracy", filename="model").tag
    'best-model'
    """

    def __init__(
        self,
        monitor_stat: str,
        filename: str | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(monitor_stat, "max", filename, checkpoint_dir, **options)
