"""StepFetches: support for tensorpack's `_before_run(ctx)` and `_after_run(ctx, values)`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hookpoint.callbacks._shared.hook_handles import HookHandles
from hookpoint.callbacks._shared.named_modules import is_compiled, named_modules
from hookpoint.callbacks.tensors._tensor_reader import (
    ITERATION_FIELDS,
    MISSING,
    TensorReader,
    is_gradient,
    sources_of,
    value_at,
)
from hookpoint.core.callback.on import OnError, Ranks
from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


class StepFetches(TensorReader):
    """Read the values that a callback's `_before_run(ctx)` requests for a step, and pass them to its `_after_run(ctx, values)`.

    The run adds a StepFetches for each callback that has one of these two methods. `_before_run` returns a name, or a list or
    dict of names, and `values.results` is accordingly a value, a list or a dict. If `_before_run` returns None,
    `values.results` is None. A name may also refer to a module. Its value is then the module's last output in this iteration.
    A gradient is None if the iteration ends without an optimizer step.

    Costs one call per step. If `_before_run` returns None, nothing is read in this step. If it requests the output of a module,
    the module gets a forward hook, which is removed after the step. In a compiled model, a new hook causes a recompilation, so
    hooks on a compiled model stay until the end of the run.
    """

    is_internal = True
    optional_points = ("on_iter_skip",)  # the handler for this point only cleans up

    def __init__(
        self,
        owner: str,
        before: Callable[[Run], Any] | None,
        after: Callable[[Run, Any], object] | None,
        *,
        on_error: OnError,
        ranks: Ranks,
    ) -> None:
        super().__init__("loss", name=f"fetches of {owner}", on_error=on_error, ranks=ranks)
        self.owner = f"{owner}._before_run"
        self._before, self._after = before, after
        self._handles = HookHandles()
        vars(self)["on_step_begin"] = self._copy_gradients

    def _clear(self) -> None:
        super()._clear()
        self._requested: Any = None
        self._modules: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}  # for each requested module, its last output in this iteration

    def on_setup(self, run: Run) -> None: ...

    def on_run_begin(self, run: Run) -> None:
        self._handles.remove()
        super().on_run_begin(run)
        self._modules = {name: module for name, module in named_modules(run.model) if name not in ("", *ITERATION_FIELDS)}

    def on_train_iter_begin(self, run: Run) -> None:
        self._release(run)
        self._requested = None if self._before is None else self._before(run)
        self.sources = {} if self._requested is None else sources_of(self.owner, self._requested)
        paths = [path for path in self.sources.values() if isinstance(path, str) and path not in self._model]
        self._copied = [path for path in paths if is_gradient(path)]
        for path in self._copied:
            self._check_gradient(run, path, self._model)
        self._gradients = {}
        self._outputs = {module: MISSING for path in paths if (module := path.partition("/")[0]) in self._modules}
        new = {name: self._modules[name] for name in self._outputs if self._modules[name] not in self._handles}
        if new:
            self._handles.register(run.model, self.owner, new, {"forward": self._keep_output})

    def on_train_iter_end(self, run: Run) -> None:
        if self._after is None:
            return
        values: Any = {name: self._value(run, name) for name in self.sources if not self._lacks_gradient(name)}
        values = {name: values.get(name) for name in self.sources}
        if isinstance(self._requested, str):
            values = values[self._requested]
        elif not isinstance(self._requested, dict):
            values = None if self._requested is None else list(values.values())
        self._release(run)
        self._after(run, SimpleNamespace(results=values))

    def on_iter_skip(self, run: Run) -> None:
        self._release(run)

    def on_run_end(self) -> None:
        self._handles.remove()
        super().on_run_end()

    def _copy_gradients(self, run: Run, index: int = 0) -> None:
        if self._copied:
            super()._copy_gradients(run, index)

    def _lacks_gradient(self, name: str) -> bool:
        """Return whether a name refers to a gradient and its optimizer has not stepped in this iteration."""
        return self.sources[name] in self._copied and self.sources[name] not in self._gradients

    def _keep_output(self, module: Any, args: Any, output: Any, *, name: str) -> None:
        if name in self._outputs:
            self._outputs[name] = output

    def _release(self, run: Run) -> None:
        """Drop the stored module outputs. Also remove the hooks, except from a compiled model.

        A compiled model keeps its hooks, because adding them again would cause a recompilation.
        """
        self._outputs = {}
        if self._handles and not is_compiled(run.model):
            self._handles.remove()

    def _look_up(self, run: Run, path: str) -> Any:
        module, _, rest = path.partition("/")
        if module not in self._outputs:
            return super()._look_up(run, path)
        output = self._outputs[module]
        if output is MISSING and not rest:
            raise BadLoop(f"{self.owner} reads '{path}', but iteration {run.iteration} did not call this module.")
        value = value_at(output, rest) if rest else output
        return super()._look_up(run, path) if value is MISSING else value  # a metric may be named head/loss
