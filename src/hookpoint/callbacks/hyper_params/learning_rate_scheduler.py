"""LearningRateScheduler: the learning rate by a function of the epoch, in Keras's words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Unpack

from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument, BadValue
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import say


class LearningRateScheduler(HyperParamSetter):
    """Set the learning rate at the begin of each epoch to `schedule(epoch, lr)`; as in Keras, epochs count from 0 there.

    A function of one argument gets the epoch only. It returns a number, and is asked for the first parameter group; the others
    keep their ratios to it. With `verbose=1` each change is printed. `param` may be another setting. An epoch that a resumed
    run continues keeps the learning rate that was restored.

    Listens to on_epoch_begin, and at on_epoch_end logs `learning_rate` where nobody else has. Sends the event "setting". Keeps
    the value, where no optimizer does, in the checkpoint. Runs on all ranks. A step pays nothing.

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
        if not callable(schedule):
            raise BadArgument(f"LearningRateScheduler takes a function, not {schedule!r}.", write="lambda epoch, lr: ...")
        _refuse_rate_first(schedule)
        self.function = schedule
        self.verbose = verbose
        self._takes_rate = _takes_two(schedule)

    def on_epoch_begin(self, run: Run) -> None:
        if run.resuming:
            return
        epoch = run.epoch - 1
        if self.setting.adjust(run, lambda rate: self._asked(epoch, rate)) and self.verbose:
            say(f"epoch {run.epoch}: {self.name} sets {self.setting.name} to {self.setting.value(run):g}")

    def on_epoch_end(self, run: Run) -> None:
        self.setting.log(run)

    def _asked(self, epoch: int, rate: Any) -> Any:
        new = self.function(epoch, rate) if self._takes_rate else self.function(epoch)
        if new is None:
            raise BadValue(f"{self.name}: the schedule returned None for epoch {epoch}.", give="a number")
        return new


def _refuse_rate_first(function: Callable[..., Any]) -> None:
    """Refuse MindSpore's form: a function of the rate and the step would take the epoch for the rate, unseen."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):
        return
    if first in ("lr", "learning_rate"):
        cures = {"write": "lambda epoch, lr: ...", "use": "ScheduledHyperParamSetter(..., step_based=True) for each step"}
        raise BadArgument(f"LearningRateScheduler calls schedule(epoch, lr), and this one takes '{first}' first.", **cures)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Say whether a function can be called with two arguments. Those that do not say are: most take both."""
    try:
        inspect.signature(function).bind(0, 0.0)
    except TypeError:
        return False
    except ValueError:
        return True
    return True
