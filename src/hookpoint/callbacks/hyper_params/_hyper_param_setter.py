"""HyperParamSetter: what the callbacks that change a setting have in common."""

from __future__ import annotations

from typing import Any, Unpack

from hookpoint.callbacks._shared.setting import Setting
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run


class HyperParamSetter(Callback):
    """Change a setting while the run goes on; derived classes say when, and to what.

    `same_on_all_ranks` says whether that depends on the clocks alone, so that every process does the same at the same step.
    """

    same_on_all_ranks = False

    def __init__(self, param: str | HyperParam, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.setting = Setting(param, same_on_all_ranks=self.same_on_all_ranks)
        set_default_name(self, f"{type(self).__name__}({self.setting.name})")

    def on_run_begin(self, run: Run) -> None:
        self.setting.begin(run, self.name or "")
        if not run.resuming:
            self.reset()

    def reset(self) -> None:
        """Forget the run before."""

    def state_dict(self) -> dict[str, Any]:
        return {"setting": self.setting.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.setting.load_state_dict(state["setting"])
