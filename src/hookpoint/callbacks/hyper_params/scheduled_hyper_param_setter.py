"""ScheduledHyperParamSetter: set a setting by a table of epochs or steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.callbacks.hyper_params._value_schedule import Interpolation, ValueSchedule
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import At, Every


class ScheduledHyperParamSetter(HyperParamSetter):
    """Set a setting by a table: `[(30, 1e-2), (60, 1e-3)]` sets 0.01 after epoch 30 and 0.001 after epoch 60.

    Epoch 0 is before training. With `interp="linear"`, the value changes from each point to the next with every epoch. With
    `step_based`, the table counts optimizer steps, and the trigger is on_iter_end of training. `param` is a name in
    `run.hyper`, or a HyperParam. A learning rate is set in the first parameter group; the other groups keep their ratios to it.

    A run that resumes from its own checkpoint keeps the restored value until the next point. A run that resumes without this
    callback's state gets the value that applies by now. Sends the event "setting"; with linear steps, once per epoch.

    >>> class Model: dropout = 0.5
    >>> setter = ScheduledHyperParamSetter(ObjAttrParam(Model, "dropout"), [(0, 0.5), (2, 0.25)])
    >>> with Loop([setter, LambdaCallback(on_train_iter_begin=lambda run: print(run.epoch, Model.dropout))]) as run:
    ...     for epoch in run.epochs(3):
    ...         for batch in run.batches([1]): pass
    1 0.5
    2 0.5
    3 0.25
    """

    same_on_all_ranks = True
    keeps: ClassVar[str] = "the position in the table, and the value, unless the optimizer stores it"
    step_cost: ClassVar[str] = "one or two comparisons; about ten microseconds with linear steps"

    def __init__(
        self,
        param: str | HyperParam,
        schedule: Iterable[tuple[int, float]],
        interp: Interpolation = None,
        step_based: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(param, **options)
        self.values = ValueSchedule(schedule, interp)
        self.step_based = step_based
        if step_based:
            self.when(Every(steps=1) if interp else At(steps=[at for at in self.values.at if at > 0]))
        self.reset()

    def reset(self) -> None:
        self._done = -1
        self._is_behind = False
        self._reported_epoch: int | None = None

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_behind = run.resuming  # until the state is loaded, or restoring is over
        if not run.resuming:
            self._advance(run, 0)

    def on_epoch_begin(self, run: Run) -> None:
        if not run.resuming:
            self._catch_up(run)

    def on_train_iter_begin(self, run: Run) -> None:
        if self._is_behind:
            self._catch_up(run)

    def on_trigger(self, run: Run) -> None:
        self._advance(run, run.step if self.step_based else run.epoch if run.mode is None else run.epoch - 1)

    def _catch_up(self, run: Run) -> None:
        """Set the value that interrupted epochs skipped, or that a run without this callback's state has missed."""
        self._is_behind = False
        self._advance(run, run.step if self.step_based else run.epoch - 1)

    def _advance(self, run: Run, now: int) -> None:
        value = self.values.due(self._done, now)
        self._done = max(self._done, now)
        if value is not None:
            quietly = self.step_based and self.values.interp is not None and self._reported_epoch == run.epoch
            if self.setting.set(run, value, quietly=quietly):
                self._reported_epoch = run.epoch

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._done, self._is_behind = state["done"], False
