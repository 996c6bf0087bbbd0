"""MetricStats: a metric that somebody else has written, over a data set."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from hookpoint.callbacks._shared.outputs import number, outputs_of, targets_of
from hookpoint.callbacks.inference._running_ratio import Ratio
from hookpoint.core.errors import BadValue
from hookpoint.core.log import metric_objects
from hookpoint.core.run.run import Run, now_of


class MetricStats:
    """Measure a metric over the data set: an object with update, compute and reset, as torchmetrics has, or a function.

    The object is copied, so that nobody else's passes are in it, and moved to the device of the run where it can be. A
    function `(outputs, targets) -> number or tensor` is averaged by samples. In a run of several processes an object of
    torchmetrics adds up over all of them itself; the results of any other are averaged by samples.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self._has_state = metric_objects.has_state(metric)
        if not self._has_state and (not callable(metric) or isinstance(metric, type)):
            give = (
                f"{metric.__name__}()"
                if isinstance(metric, type)
                else "a function (outputs, targets) -> number, or a metric object"
            )
            raise BadValue(f"metrics[{name!r}] is {metric!r}.", give=give)
        self.names = metric_objects.names_of(name, metric)
        self.writes_anything = self._has_state and metric_objects.returns_more(metric)
        self._name = name
        self._takes_tensors = metric_objects.takes_tensors(metric)
        self._adds_up_over_all = self._has_state and metric_objects.adds_up_over_all(metric)
        self._metric = copy.deepcopy(metric) if self._has_state else metric
        self.reset()

    def reset(self) -> None:
        self._means = {name: Ratio() for name in self.names}
        self._samples = 0
        self._is_shared = False
        self._is_placed = False
        if self._has_state:
            self._metric.reset()

    def update(self, run: Run) -> None:
        who = self._name or self.names[0]
        outputs, targets = outputs_of(who, run), targets_of(run)
        if self._takes_tensors:
            outputs = metric_objects.scores_in(outputs, self._metric)
        if not self._has_state:
            self._means[who].add_mean(number(who, who, self._metric(outputs, targets)), now_of(run).samples)
            return
        if not self._is_placed and run.device is not None and hasattr(self._metric, "to"):
            self._metric.to(run.device)
        self._is_placed = True
        self._samples += now_of(run).samples
        self._metric.update(outputs, targets)

    def share(self, run: Run) -> None:
        if self._adds_up_over_all:
            return
        if self._has_state:
            self._is_shared = True
            for name, value in metric_objects.computed(self._name, self._metric) if self._samples else ():
                if name not in self._means:
                    give = "metrics that return a number each, or those of torchmetrics"
                    raise BadValue(f"'{name}' of several processes: its name was not known before it was computed.", give=give)
                self._means[name].add_mean(value, self._samples)
        for mean in self._means.values():
            mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        if self._has_state and not self._is_shared:
            return dict(metric_objects.computed(self._name, self._metric))
        return dict(self._means)
