"""StatMonitorParamSetter: change a setting when a metric stagnates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function, integer, number
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.callbacks.hyper_params._hyper_param_setter import MetricParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment


class StatMonitorParamSetter(MetricParamSetter):
    """Set a hyper-parameter to `value_func(old)` when a metric has not decreased by `threshold` in its last `last_k` values.

    With `reverse`, the hyper-parameter is set when the metric has not increased by `threshold`. The best of the last `last_k`
    values is compared with the first of them. After a change, the values are discarded, so the next change happens at least
    `last_k` values later. NaN does not count as progress. An epoch without a new value does not count. Raises if the metric is
    missing. `param` is a name in `run.hyper`, or a HyperParam.

    Reads `stat_name` and sends the event "setting". With a step schedule, each trigger adds one value: the mean of the metric
    since the last trigger.

    >>> setter = StatMonitorParamSetter("learning_rate", "val_error", lambda old: old * 0.1, threshold=0.0, last_k=10)
    >>> setter.name
    'StatMonitorParamSetter(learning_rate, val_error)'
    """

    keeps: ClassVar[str] = "the last values of the metric"

    def __init__(
        self,
        param: str | HyperParam,
        stat_name: str,
        value_func: Callable[[Any], Any],
        threshold: float,
        last_k: int,
        reverse: bool = False,
        **options: Unpack[Options],
    ) -> None:
        setting = Setting(param)
        options["name"] = options.get("name") or f"StatMonitorParamSetter({setting.name}, {stat_name})"
        super().__init__(stat_name, setting, **options)
        self.value_func = function("StatMonitorParamSetter", "value_func", value_func, write="lambda old: old * 0.1")
        self._stagnation = self._decision = Stagnation(
            number("StatMonitorParamSetter", "threshold", threshold, least=0.0),
            integer("StatMonitorParamSetter", "last_k", last_k, least=2),
            reverse=reverse,
        )

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if self._stagnation.take(value):
            self.setting.adjust(run, self.value_func)


class Stagnation:
    """Detect when none of the last `last_k` values beats the first of them by more than `threshold`, then discard the values.

    Lower values are better; with `reverse`, higher values are. NaN is worse than any number.

    >>> stagnation = Stagnation(0.5, 3)
    >>> [stagnation.take(value) for value in [9.0, 8.0, 7.0, 7.0, 6.75, 5.0]]
    [False, False, False, False, True, False]
    """

    def __init__(self, threshold: float, last_k: int, *, reverse: bool = False) -> None:
        self.threshold = threshold
        self.last_k = last_k
        self.reverse = reverse
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self._values: list[float] = []

    def take(self, value: float) -> bool:
        """Add a value; return whether the metric stagnates."""
        self._values = [*self._values, value][-self.last_k :]
        if len(self._values) < self.last_k:
            return False
        first, *later = (math.inf if math.isnan(value) else -value if self.reverse else value for value in self._values)
        is_stagnant = all(value >= first - self.threshold for value in later)
        if is_stagnant:
            self.reset()
        return is_stagnant

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])
