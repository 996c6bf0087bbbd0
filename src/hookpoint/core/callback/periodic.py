"""Wrappers from tensorpack: run a callback less often, or only under a condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.pipeline import CallbackPipeline
from hookpoint.core.errors import BadSchedule
from hookpoint.core.schedule.when import At, Every, If, When


class PeriodicTrigger(CallbackPipeline):
    """Trigger a callback every k steps, every k epochs or before training. The callback's other handlers run as usual.

    The period replaces the callback's own schedule, such as the period of a ProcessTensors. If several
    PeriodicTriggers are nested, the period of the outermost one applies.

    >>> PeriodicTrigger(LambdaCallback(on_trigger=lambda run: print(run.step)), every_k_steps=100).schedule
    Every(steps=100)
    """

    replaces_schedules = True

    def __init__(
        self, callback: Any, every_k_steps: int | None = None, every_k_epochs: int | None = None, before_train: bool = False
    ) -> None:
        super().__init__([callback])
        self.before_train = before_train
        schedule = _schedule(every_k_steps, every_k_epochs)
        if schedule is None and not before_train:
            raise BadSchedule("PeriodicTrigger: no period given.", give="every_k_steps, every_k_epochs or before_train")
        self.when(schedule if schedule is not None else At(epochs=[]))


class EnableCallbackIf(CallbackPipeline):
    """Call a callback only while `predicate(run)` is true. Its handlers for on_setup, on_run_begin and on_run_end always run.

    The predicate can also read `epoch_num`, `global_step` and `local_step`, as in tensorpack.

    >>> late = EnableCallbackIf(LambdaCallback(on_epoch_end=lambda run: print(run.epoch)), lambda run: run.epoch_num > 1)
    >>> with Loop([late]) as run:
    ...     for epoch in run.epochs(2): pass
    2
    """

    def __init__(self, callback: Any, predicate: Callable[[Any], object]) -> None:
        super().__init__([callback])
        self.gate = If(predicate)


class PeriodicCallback(CallbackPipeline):
    """Call a callback only in every k-th training iteration or every k-th epoch.

    >>> rare = PeriodicCallback(LambdaCallback(on_epoch_end=lambda run: print(run.epoch)), every_k_epochs=2)
    >>> with Loop([rare]) as run:
    ...     for epoch in run.epochs(5): pass
    2
    4
    """

    def __init__(self, callback: Any, every_k_steps: int | None = None, every_k_epochs: int | None = None) -> None:
        super().__init__([callback])
        if _schedule(every_k_steps, every_k_epochs) is None:
            raise BadSchedule("PeriodicCallback: no period given.", give="every_k_steps or every_k_epochs")
        self._steps, self._epochs = every_k_steps, every_k_epochs
        self.gate = If(self._is_on)

    def _is_on(self, run: Any) -> bool:
        by_step = self._steps is not None and run.current_iteration % self._steps == 0
        return by_step or (self._epochs is not None and run.epoch % self._epochs == 0)


def _schedule(every_k_steps: int | None, every_k_epochs: int | None) -> When | None:
    schedule: When | None = Every(steps=every_k_steps) if every_k_steps is not None else None
    if every_k_epochs is not None:
        by_epoch = Every(epochs=every_k_epochs)
        schedule = by_epoch if schedule is None else schedule | by_epoch
    return schedule
