"""MetricStats: a metric that somebody else has written, over a data set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.callbacks._shared.outputs import number, outputs_of, targets_of
from hookpoint.callbacks.inference._running_ratio import Ratio
from hookpoint.core.run.run import now_of

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run


class MetricStats:
    """Measure a metric over the data set: an object with update, compute and reset, as torchmetrics has, or a function.

    The object is copied, so that nobody else's passes are in it, and moved to the device of the run where it can be. A
    function `(outputs, targets) -> number or tensor` is averaged by samples. In a run of several processes an object of
    torchmetrics adds up over all of them itself; the results of any other are averaged by samples.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self.names = (name,)
        self._has_state = all(callable(getattr(metric, part, None)) for part in ("update", "compute", "reset"))
        if not self._has_state and not callable(metric):
            raise TypeError(
                f"metrics[{name!r}] is {metric!r}; give a function (outputs, targets) -> number, or a metric object"
            )
        self._metric = copy.deepcopy(metric) if self._has_state else metric
        self.reset()

    def reset(self) -> None:
        self._mean = Ratio()
        self._samples = 0
        self._is_shared = False
        self._is_placed = False
        if self._has_state:
            self._metric.reset()

    def update(self, run: Run) -> None:
        who = self.names[0]
        outputs, targets = outputs_of(who, run), targets_of(run)
        if not self._has_state:
            self._mean.add_mean(number(who, who, self._metric(outputs, targets)), now_of(run).samples)
            return
        if not self._is_placed and run.device is not None and hasattr(self._metric, "to"):
            self._metric.to(run.device)
        self._is_placed = True
        self._samples += now_of(run).samples
        self._metric.update(outputs, targets)

    def share(self, run: Run) -> None:
        if self._has_state and not hasattr(self._metric, "sync_context"):
            self._is_shared = True
            if self._samples:
                self._mean.add_mean(self._metric.compute(), self._samples)
        if not self._has_state or self._is_shared:
            self._mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {self.names[0]: self._metric.compute() if self._has_state and not self._is_shared else self._mean}
