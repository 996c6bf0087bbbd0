"""StepFetches: support for tensorpack's `_before_run(ctx)` and `_after_run(ctx, values)`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hookpoint.callbacks.tensors._tensor_reader import TensorReader, is_gradient, sources_of
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


class StepFetches(TensorReader):
    """Read the values that a callback's `_before_run(ctx)` requests for a step, and pass them to its `_after_run(ctx, values)`.

    The run adds a StepFetches for each such callback. `_before_run` returns a name, or a list or dict of names, and
    `values.results` is accordingly a value, a list or a dict. If `_before_run` returns None, `values.results` is None. Costs
    one call per step. Nothing is read in steps without a request.
    """

    is_internal = True

    def __init__(self, callback: Callback, ranks: str) -> None:
        super().__init__("loss")
        self.owner = f"{type(callback).__name__}._before_run"
        self.name, self.ranks = f"fetches of {type(callback).__name__}", ranks  # type: ignore[assignment]
        self._before, self._after = getattr(callback, "_before_run", None), getattr(callback, "_after_run", None)
        self._asked: Any = None
        vars(self)["on_step_begin"] = self._copy_asked

    def on_setup(self, run: Run) -> None: ...

    def on_train_iter_begin(self, run: Run) -> None:
        self._asked = None if self._before is None else self._before(run)
        self.sources = {} if self._asked is None else sources_of(self.owner, self._asked)
        self._copied = [path for path in self.sources.values() if isinstance(path, str) and is_gradient(path)]
        self._copied = [path for path in self._copied if path not in self._model]
        self._gradients = {}
        for path in self._copied:
            if path.removesuffix(".grad") not in self._model:
                raise BadLoop(
                    f"{self.owner} names '{path}', but the model has no such parameter.", known=", ".join(self._model)
                )

    def _copy_asked(self, run: Run) -> None:
        if self._copied:
            self._copy_gradients(run)

    def on_train_iter_end(self, run: Run) -> None:
        if self._after is None:
            return
        values: Any = {name: self._value(run, name) for name in self.sources}
        if isinstance(self._asked, str):
            values = values[self._asked]
        elif not isinstance(self._asked, dict):
            values = None if self._asked is None else list(values.values())
        self._after(run, SimpleNamespace(results=values))
