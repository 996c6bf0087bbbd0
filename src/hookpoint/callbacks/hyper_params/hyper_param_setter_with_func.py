"""HyperParamSetterWithFunc: set a hyper-parameter with a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import function
from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run


class HyperParamSetterWithFunc(HyperParamSetter):
    """Set a hyper-parameter to `func(epochs_done, old)`, before training and after each epoch.

    `epochs_done` is 0 before training. If `func` returns None, the value does not change. `param` is a name in `run.hyper`, or
    a HyperParam. For a learning rate, `old` is the rate of the first parameter group, and the other groups keep their ratios to
    it. For any other setting, `func` is called once for each distinct value in the parameter groups. To set the value at each
    step, as in MindSpore, write `.when(Every(steps=1))` and use the run's step in the function. Sends the event "setting".

    >>> class Model: dropout = 0.5
    >>> halve = lambda epochs_done, old: old / 2 if epochs_done else None
    >>> setter = HyperParamSetterWithFunc(ObjAttrParam(Model, "dropout"), halve)
    >>> with Loop([setter]) as run:
    ...     for epoch in run.epochs(2): pass
    >>> Model.dropout
    0.125
    """

    same_on_all_ranks = True

    def __init__(self, param: str | HyperParam, func: Callable[[int, Any], Any], **options: Unpack[Options]) -> None:
        super().__init__(param, **options)
        self.func = function("HyperParamSetterWithFunc", "func", func, write="lambda epochs_done, old: ...")

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if not run.resuming:
            self._set(run, 0)

    def on_trigger(self, run: Run) -> None:
        self._set(run, run.epoch if run.mode is None else run.epoch - 1)

    def _set(self, run: Run, epochs_done: int) -> None:
        self.setting.adjust(run, lambda old: self.func(epochs_done, old))
