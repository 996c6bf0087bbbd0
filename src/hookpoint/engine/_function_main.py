"""FunctionMain: a MainCallback from one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookpoint.core.callback.main_callback import MainCallback
from hookpoint.core.errors import BadArgument, NotACallback
from hookpoint.core.run.run import Run
from hookpoint.engine._forward import total_of


class FunctionMain(MainCallback):
    """Compute the loss with a function of the run: `Runner(..., main=lambda run: my_loss(run.model, run.batch))`.

    If it returns a dict of losses, the entry "loss" or else the sum is the loss. The other entries are logged.
    """

    writes_anything = True

    def __init__(self, function: Callable[[Run], Any]) -> None:
        if isinstance(function, type):
            raise NotACallback.a_class(function)
        if not callable(function):
            cure = "a MainCallback, or a function of the run that returns the loss"
            raise BadArgument(f"main must be callable, got {function!r}.", give=cure)
        super().__init__(name=getattr(function, "__name__", None))
        self._function = function

    def on_iter_forward(self, run: Run) -> None:
        loss = self._function(run)
        if isinstance(loss, Mapping):
            loss, parts = total_of(loss)
            run.log(parts)
        run.loss = loss
