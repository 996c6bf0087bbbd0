"""HyperParamSetterWithFunc: a setting by a function of the epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from hookpoint.callbacks.hyper_params._hyper_param_setter import HyperParamSetter
from hookpoint.core.callback.callback import Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.hyper import HyperParam
from hookpoint.core.run.run import Run


class HyperParamSetterWithFunc(HyperParamSetter):
    """Set a setting to `func(epochs_done, old)`, before training, with 0, and after each epoch; None changes nothing.

    `param` is a name in `run.hyper`, or a HyperParam. Of a learning rate, `old` is the first parameter group's, and the others
    keep their ratios to it; of any other setting, each group is changed from its own value.
    Per step, MindSpore's way: `.when(Every(steps=1))`, and a function that looks at the run's step itself.

    Listens to on_run_begin of a fresh run, and is triggered at the end of each complete epoch, unless `.when(...)` says
    otherwise. Sends the event "setting". Keeps the value, where no optimizer does, in the checkpoint. Runs on all ranks. A step
    pays nothing.

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
        if not callable(func):
            raise BadArgument(f"HyperParamSetterWithFunc takes a function, not {func!r}.", write="lambda epochs_done, old: ...")
        self.func = func

    def on_run_begin(self, run: Run) -> None:
        super().on_run_begin(run)
        if not run.resuming:
            self._set(run, 0)

    def on_trigger(self, run: Run) -> None:
        self._set(run, run.epoch if run.mode is None else run.epoch - 1)

    def _set(self, run: Run, epochs_done: int) -> None:
        self.setting.adjust(run, lambda old: self.func(epochs_done, old))
