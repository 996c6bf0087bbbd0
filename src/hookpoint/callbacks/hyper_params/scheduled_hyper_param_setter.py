"""ScheduledHyperParamSetter: set a hyper-parameter from a table of values keyed by epoch or step."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from operator import index
from typing import Any, ClassVar, Literal, Unpack

from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadSchedule
from hookpoint.core.logger import logger
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.schedule.when import At, Every

Interpolation = Literal["linear"] | None


class ScheduledHyperParamSetter(HyperParamSetter):
    """Set a hyper-parameter from a table: `[(30, 1e-2), (60, 1e-3)]` sets 0.01 after epoch 30 and 0.001 after epoch 60.

    The value for epoch 0 is set before training. With `interp="linear"`, the value changes every epoch and moves linearly from
    each entry of the table to the next. With `step_based`, the table contains optimizer steps instead of epochs, and the
    callback is triggered at on_iter_end in training. `param` is a name in `run.hyper`, or a HyperParam. A learning rate is set
    in the first parameter group; the other groups keep their ratios to it.

    A run that resumes from its own checkpoint keeps the restored value until the next entry of the table is due. A run that
    resumes without this callback's state gets the value that the table specifies for the current epoch or step.

    Sends the event "setting" at each change; with both `interp="linear"` and `step_based`, only once per epoch.

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
    keeps: ClassVar[str] = "the position in the table, and the value unless the optimizer's state contains it"
    step_cost: ClassVar[str] = 'one or two comparisons; about ten microseconds with both interp="linear" and step_based'

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
        self._is_behind = run.resuming  # stays True until the state is loaded or the run is restored
        if not run.resuming:
            self._advance(run, 0)

    def on_epoch_begin(self, run: Run) -> None:
        if not run.resuming:
            self._catch_up(run)
        first, epochs = self.values.at[0], run.max_epochs
        if run.epoch == 1 and not self.step_based and epochs is not None and epochs <= first and run.is_chief:
            line = "%s changes nothing: the first entry applies after epoch %d, but the run ends after epoch %d"
            logger.warning(f"{line}; if the table contains steps, pass step_based=True", self.name, first, epochs)

    def on_train_iter_begin(self, run: Run) -> None:
        if self._is_behind:
            self._catch_up(run)

    def on_trigger(self, run: Run) -> None:
        self._advance(run, run.step if self.step_based else run.epoch if run.mode is None else run.epoch - 1)

    def _catch_up(self, run: Run) -> None:
        """Set the value that is due, if an earlier epoch was interrupted or the run resumed without this callback's state."""
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


class ValueSchedule:
    """A schedule of values by epoch or step. `due` returns the value to set when the epoch or step has advanced.

    Each value applies from its epoch or step on. With "linear", values between two entries are interpolated. There is no value
    before the first entry. The last value applies indefinitely.

    >>> schedule = ValueSchedule([(0, 1.0), (10, 0.0)], "linear")
    >>> schedule.due(-1, 0), schedule.due(0, 5), schedule.due(5, 12), schedule.due(12, 13)
    (1.0, 0.5, 0.0, None)
    """

    def __init__(self, points: Iterable[tuple[int, float]], interp: Interpolation = None) -> None:
        if interp not in (None, "linear"):
            raise BadSchedule(f"interp must be None or 'linear', got {interp!r}.")
        unsorted = [_point(pair) for pair in points]
        pairs = sorted(unsorted, key=lambda pair: pair[0])
        self.at = [at for at, _ in pairs]
        self.values = [value for _, value in pairs]
        self.interp = interp
        duplicates = [at for at, following in pairwise(self.at) if at == following]
        if not pairs or duplicates:
            problem = f"has two values at {duplicates[0]}" if duplicates else "is empty"
            raise BadSchedule(f"the schedule {problem}.", write="[(30, 1e-2), (60, 1e-3)]")
        if pairs != unsorted:
            logger.warning("The schedule's entries are not sorted; using %s", pairs)

    def due(self, before: int, now: int) -> float | None:
        """Return the value to set when the epoch or step has advanced from `before` to `now`, or None if nothing changes."""
        last = bisect_right(self.at, now) - 1
        if last < 0 or before >= self.at[-1] or (self.interp is None and before >= self.at[last]):
            return None
        if self.interp is None or last == len(self.at) - 1 or now == self.at[last]:
            return self.values[last]
        low, high = self.at[last], self.at[last + 1]
        return self.values[last] + (self.values[last + 1] - self.values[last]) * ((now - low) / (high - low))


def _point(pair: Any) -> tuple[int, float]:
    try:
        at, value = pair
        at = index(at)
        is_number = not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, ValueError):
        is_number = False
    if not is_number or at < 0:
        raise BadSchedule(f"{pair!r} is not a valid schedule entry.", write="(30, 1e-2): an integer >= 0 and a finite number")
    return at, value
