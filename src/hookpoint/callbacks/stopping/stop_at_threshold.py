"""StopAtThreshold: stop when a metric is good enough."""

from __future__ import annotations

import logging
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.core.callback.callback import Options
from hookpoint.core.log.best import mode_of
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment

logger = logging.getLogger("hookpoint")


class StopAtThreshold(MetricWatcher):
    """Stop the run when a metric has come down to `threshold` or, with the mode "max", up to it.

    `mode` is "min", "max", or "auto", which goes by the metric's name. NaN is never enough, and a missing metric is an
    error. Within epochs, `.when(Every(steps=100))` looks at the mean of what was logged since it last looked.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise. Reads `monitor`, sends the event "stop".
    Keeps the value that was enough in the checkpoint; a run that it had stopped is stopped again when it is resumed, unless
    that value is no longer enough. Runs on all ranks. A step pays nothing.

    >>> with Loop([StopAtThreshold("accuracy", 0.75)]) as run:
    ...     for epoch in run.epochs(10):
    ...         run.log(accuracy=epoch * 0.25)
    >>> run.epoch
    3
    """

    def __init__(self, monitor: str, threshold: float, mode: str = "auto", **options: Unpack[Options]) -> None:
        super().__init__(monitor, **options)
        self.threshold = number("StopAtThreshold", "threshold", threshold)
        self.mode = mode_of(monitor, mode)
        self._reached: float | None = None

    def is_enough(self, value: float) -> bool:
        """Say whether a value is as good as the threshold."""
        return value <= self.threshold if self.mode == "min" else value >= self.threshold

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if self.is_enough(value):
            self._reached = value
            self._stop(run, value)

    def on_load(self, run: Run) -> None:
        if self._reached is not None and self.is_enough(self._reached):
            logger.warning("%s had stopped this run, and stops it again", self.name)
            self._stop(run, self._reached)

    def _stop(self, run: Run, value: float) -> None:
        run.stop(f"{self.name}: {value:g} is {'at most' if self.mode == 'min' else 'at least'} {self.threshold:g}")

    def reset(self) -> None:
        super().reset()
        self._reached = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "reached": self._reached}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._reached = state["reached"]
