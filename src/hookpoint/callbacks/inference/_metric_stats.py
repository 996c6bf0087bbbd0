"""MetricStats: a metric object or function over a data set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks.inference._outputs import number, outputs_of, targets_of
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.core.errors import BadValue
from hookpoint.core.log import metric_objects
from hookpoint.core.run.run import Run, now_of


class MetricStats:
    """Measure a metric over the data set: an object with update, compute and reset, as in torchmetrics, or a function.

    An object is copied, so that it contains no other passes, and moved to the device of the run if it can be. A function
    `(outputs, targets) -> number or tensor` is averaged by samples. In a distributed run, torchmetrics objects synchronize
    themselves; other results are averaged by samples.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self._has_state = metric_objects.has_state(metric)
        if not self._has_state and (not callable(metric) or isinstance(metric, type)):
            is_class = isinstance(metric, type)
            give = f"{metric.__name__}()" if is_class else "a function (outputs, targets) -> number, or a metric object"
            raise BadValue(f"metrics[{name!r}] is not a metric, got {metric!r}.", give=give)
        self.names = metric_objects.names_of(name, metric)
        self.writes_anything = self._has_state and metric_objects.returns_more(metric)
        self._name = name
        self._takes_tensors = metric_objects.takes_tensors(metric)
        self._synchronizes = self._has_state and metric_objects.adds_up_over_all(metric)
        self._metric = copy.deepcopy(metric) if self._has_state else metric
        self.reset()

    def reset(self) -> None:
        self._means = {name: RunningRatio() for name in self.names}
        self._samples = 0
        self._is_shared = self._is_placed = False
        if self._has_state:
            self._metric.reset()

    def update(self, run: Run) -> None:
        reader = self._name or self.names[0]
        outputs, targets = outputs_of(reader, run), targets_of(run)
        if self._takes_tensors:
            outputs = metric_objects.scores_in(outputs, self._metric)
        if not self._has_state:
            self._means[reader].add_mean(number(reader, reader, self._metric(outputs, targets)), now_of(run).samples)
            return
        if not self._is_placed and run.device is not None and hasattr(self._metric, "to"):
            self._metric.to(run.device)
        self._is_placed = True
        self._samples += now_of(run).samples
        self._metric.update(outputs, targets)

    def share(self, run: Run) -> None:
        if self._synchronizes:
            return
        if self._has_state:
            self._is_shared = True
            for name, value in metric_objects.computed(self._name, self._metric) if self._samples else ():
                if name not in self._means:
                    give = "metrics that return a single number, or those of torchmetrics"
                    raise BadValue(f"'{name}': in a distributed run, names must be known before compute().", give=give)
                self._means[name].add_mean(value, self._samples)
        for mean in self._means.values():
            mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        if self._has_state and not self._is_shared:
            return dict(metric_objects.computed(self._name, self._metric))
        return dict(self._means)
