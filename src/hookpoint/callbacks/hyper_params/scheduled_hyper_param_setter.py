"""ScheduledHyperParamSetter: a setting by a table of epochs or steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.callbacks.hyper_params._value_schedule import Interpolation, ValueSchedule
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import At, Every


class ScheduledHyperParamSetter(HyperParamSetter):
    """Set a setting by a table: `[(30, 1e-2), (60, 1e-3)]` sets 0.01 when epoch 30 is over, and 0.001 when epoch 60 is.

    An epoch of 0 means before training. With `interp="linear"` the value moves from each point to the next with every epoch.
    With `step_based` the table counts optimizer steps. `param` is a name in `run.hyper`, or a HyperParam. A learning
    rate is set in the first parameter group, and the others keep their ratios to it. A run that resumes from its own
    checkpoint keeps the value that was restored until the next point; one that resumes without this callback's state gets the
    value that should hold by now. A setting that is not the optimizer's is kept in the checkpoint as well.

    Listens to on_run_begin, on_epoch_begin and on_train_iter_begin, and is triggered at the end of each complete epoch; with
    `step_based` at on_iter_end of training, by a schedule that `.when(...)` replaces. Sends the event "setting", with linear
    steps once per epoch. Keeps how far it is in the checkpoint. Runs on all ranks. A step pays a comparison or two, with
    linear steps about ten microseconds.

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
        self._said_in: int | None = None

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        self._is_behind = run.resuming  # until the state comes, or the first moment at which nothing is restored any more
        if not run.resuming:
            self._bring_to(run, 0)

    def on_epoch_begin(self, run: Run) -> None:
        if not run.resuming:
            self._catch_up(run)

    def on_train_iter_begin(self, run: Run) -> None:
        if self._is_behind:
            self._catch_up(run)

    def on_trigger(self, run: Run) -> None:
        self._bring_to(run, run.step if self.step_based else run.epoch if run.mode is None else run.epoch - 1)

    def _catch_up(self, run: Run) -> None:
        """Set what epochs that were cut short have left out, or all that a run without this callback's state has missed."""
        self._is_behind = False
        self._bring_to(run, run.step if self.step_based else run.epoch - 1)

    def _bring_to(self, run: Run, now: int) -> None:
        value = self.values.due(self._done, now)
        self._done = max(self._done, now)
        if value is not None:
            is_one_of_many = self.step_based and self.values.interp is not None and self._said_in == run.epoch
            if self.setting.set(run, value, quietly=is_one_of_many):
                self._said_in = run.epoch

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._done, self._is_behind = state["done"], False
