"""StopAtThreshold: stop when a metric is good enough."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import number
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.core.callback.callback import Options
from hookpoint.core.log.best import mode_of
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment


class StopAtThreshold(MetricWatcher):
    """Stop the run when a metric falls to `threshold` or, with `mode="max"`, rises to it.

    `mode` is "min", "max" or "auto". With "auto", the metric's name determines whether the mode is "min" or "max". NaN never
    reaches the threshold. Raises if the metric is missing. With a step schedule, such as `.when(Every(steps=100))`, the value
    is the mean of the values logged since the last trigger.

    Reads `monitor` and sends the event "stop". If you resume a stopped run, StopAtThreshold stops it again unless you set a
    stricter threshold.

    >>> with Loop([StopAtThreshold("accuracy", 0.75)]) as run:
    ...     for epoch in run.epochs(10):
    ...         run.log(accuracy=epoch * 0.25)
    >>> run.epoch
    3
    """

    keeps: ClassVar[str] = "the value that reached the threshold"

    def __init__(self, monitor: str, threshold: float, mode: str = "auto", **options: Unpack[Options]) -> None:
        super().__init__(monitor, **options)
        self.threshold = number("StopAtThreshold", "threshold", threshold)
        self.mode = mode_of(monitor, mode)
        self._reached: float | None = None

    def is_enough(self, value: float) -> bool:
        """Return whether a value reaches the threshold."""
        return value <= self.threshold if self.mode == "min" else value >= self.threshold

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if self.is_enough(value):
            self._reached = value
            self._stop(run, value)

    def on_load(self, run: Run) -> None:
        if self._reached is not None and self.is_enough(self._reached):
            logger.warning("%s has stopped this run before and is stopping it again", self.name)
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
