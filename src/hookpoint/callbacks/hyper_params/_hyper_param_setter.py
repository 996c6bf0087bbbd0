"""HyperParamSetter and MetricParamSetter: the base classes of callbacks that change a setting."""

from __future__ import annotations

from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.callbacks._shared.setting import Setting
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run


class HyperParamSetter(Callback):
    """Change a setting during the run. Subclasses decide when, and to which value.

    `same_on_all_ranks` is True if the value depends only on the epoch or step, so that every rank sets the same value at the
    same step.
    """

    same_on_all_ranks = False
    keeps: ClassVar[str] = "the value, unless the optimizer's state contains it"
    step_cost: ClassVar[str] = "nothing"

    def __init__(self, param: str | HyperParam, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.setting = Setting(param, same_on_all_ranks=self.same_on_all_ranks)
        set_default_name(self, f"{type(self).__name__}({self.setting.name})")

    def on_run_begin(self, run: Run) -> None:
        self.setting.begin(run, self.name or "")
        self.reset()

    def reset(self) -> None:
        """Discard the state of the previous run."""

    def state_dict(self) -> dict[str, Any]:
        return {"setting": self.setting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.setting.load_state_dict(state["setting"])


class MetricParamSetter(MetricWatcher):
    """Change a setting based on a metric."""

    def __init__(self, monitor: str, setting: Setting, **options: Unpack[Options]) -> None:
        super().__init__(monitor, **options)
        self.setting = setting

    def on_run_begin(self, run: Run) -> None:
        self.setting.begin(run, self.name or "")
        super().on_run_begin(run)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "setting": self.setting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.setting.load_state_dict(state["setting"])
