"""LearningRateScheduler: set the learning rate with a function of the epoch, as in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import function, misfit, parameters_of
from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say

EXAMPLE = "lambda epoch, lr: ..."


class LearningRateScheduler(HyperParamSetter):
    """Set the learning rate at the start of each epoch to `schedule(epoch, lr)`, with epochs counted from 0 as in Keras.

    If the function has one parameter, it receives only the epoch. The function returns the rate for the first parameter group;
    the other groups keep their ratios to it. `verbose=1` prints each change. To schedule another setting instead of the
    learning rate, pass its name or a `HyperParam` as `param`. When a run resumes in the middle of an epoch, that epoch keeps
    the restored rate. Sends the event "setting", and logs `learning_rate` at on_epoch_end unless it is already logged.

    >>> class Model: dropout = 0.5
    >>> dropout = ObjAttrParam(Model, "dropout")
    >>> scheduler = LearningRateScheduler(lambda epoch, old: old if epoch < 2 else old / 2, param=dropout)
    >>> with Loop([scheduler]) as run:
    ...     for epoch in run.epochs(3): print(Model.dropout)
    0.5
    0.5
    0.25
    """

    same_on_all_ranks = True

    def __init__(
        self,
        schedule: Callable[..., Any],
        verbose: int = 0,
        *,
        param: str | HyperParam = "learning_rate",
        **options: Unpack[Options],
    ) -> None:
        options["name"] = options.get("name") or "LearningRateScheduler"
        super().__init__(param, **options)
        self.may_write = (self.setting.name,)
        self.function = function("LearningRateScheduler", "schedule", schedule, write=EXAMPLE)
        self.verbose = verbose
        self._takes_rate = _takes_rate(schedule)

    def on_epoch_begin(self, run: Run) -> None:
        if run.resuming:
            return
        epoch = run.epoch - 1
        if self.setting.adjust(run, lambda rate: self._new_rate(epoch, rate)) and self.verbose:
            say(f"epoch {run.epoch}: {self.name} sets {self.setting.name} to {self.setting.value(run):g}")

    def on_epoch_end(self, run: Run) -> None:
        self.setting.log(run)

    def _new_rate(self, epoch: int, rate: Any) -> Any:
        new = self.function(epoch, rate) if self._takes_rate else self.function(epoch)
        if new is None:
            raise BadValue(f"{self.name}: the schedule returned None for epoch {epoch}.", give="a number")
        return new


def _takes_rate(schedule: Callable[..., Any]) -> bool:
    """Return whether a schedule takes two arguments. If a schedule has no signature, assume that it takes two.

    Raise if the first parameter is the learning rate, as in MindSpore, because that parameter would receive the epoch.
    """
    first = next((parameter.name for parameter in parameters_of(schedule)), "")
    if first in ("lr", "learning_rate"):
        cures = {"write": EXAMPLE, "use": "ScheduledHyperParamSetter(..., step_based=True) for each step"}
        raise BadArgument(
            f"LearningRateScheduler calls schedule(epoch, lr), but the first parameter of your function is '{first}'.", **cures
        )
    return not misfit(schedule, 0, 0.0)
