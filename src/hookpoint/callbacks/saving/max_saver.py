"""MaxSaver: keep the checkpoint with the highest value of a metric."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from hookpoint.callbacks._shared.saver import reject_path
from hookpoint.callbacks.saving._metric_saver import MetricSaver
from hookpoint.core.callback.callback import Options
from hookpoint.core.log.best import Best


class MaxSaver(MetricSaver):
    """Save to `checkpoints/best-<metric>/` whenever a metric reaches a new maximum.

    Otherwise, MaxSaver works like MinSaver: it reads `monitor_stat` and sends the event "best" with the fields `metric`,
    `value` and `previous`.

    >>> MaxSaver("val_accuracy", filename="model").tag
    'best-model'
    """

    def __init__(
        self,
        monitor_stat: str,
        filename: str | None = None,
        checkpoint_dir: str | PathLike[str] | None = None,
        *,
        async_save: bool = True,
        **options: Unpack[Options],
    ) -> None:
        reject_path("MaxSaver", "checkpoint_dir", checkpoint_dir)
        super().__init__("best", monitor_stat, Best("max"), filename, async_save=async_save, **options)
