"""RunOp: call a function during a run."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Unpack

from hookpoint.callbacks._shared.arguments import function, parameters_of
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.errors import BadArgument
from hookpoint.core.points import RUN_NAMES
from hookpoint.core.run.run import Run
from hookpoint.core.text.terminal import printable, say


class RunOp(Callback):
    """Call a function before training, when triggered, or after each step, as in tensorpack.

    If `op` has a parameter named `run`, `op` receives the run. Otherwise, `op` is called without arguments. The return value of
    `op` is ignored. `run_before` calls `op` when the run starts or resumes, before any state is loaded. `run_step` calls `op`
    after each optimizer step, or after each batch in a loop without an optimizer. `verbose` prints a line for each call.

    Listens to on_run_begin and, with `run_step`, to on_train_iter_end. Triggered at the end of each complete epoch, unless
    `run_as_trigger` is False or `.when(...)` says otherwise.

    >>> with Loop([RunOp(lambda run: print("after epoch", run.epoch), run_before=False)]) as run:
    ...     for epoch in run.epochs(2): pass
    after epoch 1
    after epoch 2
    """

    writes_anything = True
    step_cost = "with `run_step`, the time that the function takes; otherwise nothing"

    def __init__(
        self,
        op: Callable[..., object],
        run_before: bool = True,
        run_as_trigger: bool = True,
        run_step: bool = False,
        verbose: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        if not (run_before or run_as_trigger or run_step):
            raise BadArgument("RunOp: op would never be called.", give="run_before, run_as_trigger or run_step")
        self.op = function("RunOp", "op", op, write="lambda run: ...")
        self.run_before = run_before
        self.verbose = verbose
        set_default_name(self, f"RunOp({_name_of(op)})")
        self._run_name = _run_name(op)
        self._step = 0
        # Define handlers only if needed. Without them, steps cost nothing, and `.when(...)` raises if run_as_trigger is False.
        wanted = {"on_trigger": run_as_trigger and self._call, "on_train_iter_end": run_step and self._call_after_step}
        vars(self).update((point, handler) for point, handler in wanted.items() if handler)

    def on_run_begin(self, run: Run) -> None:
        self._step = run.step
        if self.run_before:
            self._call(run)

    def _call_after_step(self, run: Run) -> None:
        if run.step != self._step:  # the step count does not change while gradients are accumulated
            self._step = run.step
            self._call(run)

    def _call(self, run: Run) -> None:
        if self.verbose and run.is_chief:
            say(f"running {printable(_name_of(self.op))}")
        if self._run_name is None:
            self.op()
        else:
            self.op(**{self._run_name: run})


def _name_of(op: Callable[..., object]) -> str:
    return str(getattr(op, "__name__", type(op).__name__))


def _run_name(op: Callable[..., object]) -> str | None:
    """Return the name of the parameter of `op` that receives the run, or None if `op` has no such parameter.

    If `op` has other required parameters, raise an error.
    """
    params = parameters_of(op)
    name = next((param.name for param in params if param.name in RUN_NAMES and param.kind is not param.POSITIONAL_ONLY), None)
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    required = [param.name for param in params if param.default is Parameter.empty and param.kind not in variadic]
    others = ", ".join(other for other in required if other != name)
    if others:
        raise BadArgument(f"RunOp: op needs '{others}', but RunOp passes only the run to op.", write="lambda run: ...")
    return name
