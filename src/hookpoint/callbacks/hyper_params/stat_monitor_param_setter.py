"""StatMonitorParamSetter: change a setting when a metric stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import number, whole
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.callbacks.hyper_params._stagnation import Stagnation
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.moment import Moment


class StatMonitorParamSetter(MetricWatcher):
    """Set a setting to `value_func(old)` when a metric has not gone down by `threshold` within its last `last_k` values.

    With `reverse` it has to go up. The least of the last values is compared with the first of them; after a change they are
    forgotten, so that the next comes `last_k` values later at the earliest. NaN is no progress. An epoch without a new value
    does not count, and a missing metric is an error. `param` is a name in `run.hyper`, or a HyperParam.

    Triggered at the end of each complete epoch, unless `.when(...)` says otherwise. Reads `stat_name`, sends the event
    "setting". Keeps the last values in the checkpoint. Runs on all ranks. A step pays nothing.

    With a step schedule it looks at the mean of what was logged since it last looked; a
    step that logs the metric pays for an addition then.

    >>> setter = StatMonitorParamSetter("learning_rate", "val_error", lambda old: old * 0.1, threshold=0.0, last_k=10)
    >>> setter.name
    'StatMonitorParamSetter(learning_rate, val_error)'
    """

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
        self.setting = Setting(param)
        options["name"] = options.get("name") or f"StatMonitorParamSetter({self.setting.name}, {stat_name})"
        super().__init__(stat_name, **options)
        if not callable(value_func):
            raise BadArgument(f"StatMonitorParamSetter takes a function, not {value_func!r}.", write="lambda old: old * 0.1")
        self.value_func = value_func
        self._stagnation = Stagnation(
            number("StatMonitorParamSetter", "threshold", threshold, least=0.0),
            whole("StatMonitorParamSetter", "last_k", last_k, least=2),
            reverse=reverse,
        )

    def on_run_begin(self, run: Run) -> None:
        self.setting.begin(run, self.name or "")
        super().on_run_begin(run)

    def take(self, run: Run, moment: Moment, value: float) -> None:
        if self._stagnation.take(value):
            self.setting.adjust(run, self.value_func)

    def reset(self) -> None:
        super().reset()
        self._stagnation.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self._stagnation.state_dict(), "setting": self.setting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._stagnation.load_state_dict(state)
        self.setting.load_state_dict(state["setting"])
