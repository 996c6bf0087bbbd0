"""CheckNumerics: raise if parameters, gradients or other tensors contain NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function
from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.callbacks._shared.numerics import largest, nonfinite_names
from hookpoint.callbacks._shared.step_gradients import OtherOptimizers, require_step_hooks, stepped_parameters
from hookpoint.callbacks.stopping._loss_callback import loss_of
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.stateful import gradients_of, named_parameters
from hookpoint.core.errors import BadArgument, BadLoop, NotFinite
from hookpoint.core.fields import field_values
from hookpoint.core.run.run import Run

PARAMETERS, GRADIENTS = "the parameters", "the gradients"


class CheckNumerics(Callback):
    """Raise NotFinite if a parameter, a gradient, the loss or a given tensor contains NaN or infinity.

        run_as_trigger: Check parameters when triggered, as in tensorpack. If False, `.when(...)` raises.
        run_step: Also check parameters after each step.
        parameters: Check parameters once before training, and later as set by `run_as_trigger` and `run_step`. False disables
            all checks of parameters.
        gradients: Check gradients before each step of each optimizer.
        loss: Check the loss after each iteration.
        tensors: Mapping from names to functions of the run, such as `{"logits": lambda run: run.outputs}`. Each function
            returns a tensor or a collection of tensors, which are checked after each iteration.

    No step waits for a GPU: results are read once they are on the host, within about 50 steps, and by the end of the epoch at
    the latest.

    >>> with Loop([CheckNumerics(parameters=False, tensors={"error": lambda run: run.batch})]) as run:
    ...     for batch in run.batches([0.5, float("nan")]): pass
    Traceback (most recent call last):
    ...
    hookpoint.core.errors.NotFinite: CheckNumerics: NaN or infinity in error at step 2...
    """

    step_cost: ClassVar[str] = "two handler calls, and one reduction over each tensor that is checked at every step"

    def __init__(
        self,
        run_as_trigger: bool = True,
        run_step: bool = False,
        *,
        parameters: bool = True,
        gradients: bool = False,
        loss: bool = False,
        tensors: Mapping[str, Callable[[Run], Any]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        self.run_as_trigger, self.run_step = run_as_trigger and parameters, run_step and parameters
        self.parameters, self.gradients = parameters, gradients
        self.tensors: dict[str, Callable[[Run], Any]] = {**({"loss": loss_of} if loss else {}), **(tensors or {})}
        for name, value in self.tensors.items():
            function("CheckNumerics", f"tensors[{name!r}]", value, write="lambda run: run.outputs")
        if not (self.run_as_trigger or self.run_step or gradients or self.tensors):
            raise BadArgument("CheckNumerics has nothing to check.", give="parameters, gradients, loss or tensors")
        self._magnitudes = AsyncScalars()
        self._others = OtherOptimizers()
        if not self.run_as_trigger and type(self).on_trigger is CheckNumerics.on_trigger:
            vars(self)["on_trigger"] = None  # there is nothing to check, so `.when(...)` raises

    def on_setup(self, run: Run) -> None:
        owner = self.name or "CheckNumerics"
        if (self.parameters or self.gradients) and next(named_parameters(run.model), None) is None:
            raise BadLoop(f"{owner} found no parameters.", give="model=..., or parameters=False and tensors=...")
        if self.gradients:
            require_step_hooks(run, owner, "check gradients")

    def on_run_begin(self, run: Run) -> None:
        self._magnitudes.clear()
        if self.gradients:
            self._others.observe(run, self, self._add_gradients)
        if self.parameters and not run.resuming:
            self._check_parameters(run)

    def leaves_graph(self, run: Run) -> bool:
        """Return whether the next step must run outside the CUDA graph so that its gradients can be read."""
        return self.gradients

    def on_step_begin(self, run: Run) -> None:
        if self.gradients:
            self._add_gradients(run)

    def on_train_iter_end(self, run: Run) -> None:
        for name, read in self.tensors.items():
            self._magnitudes.add((name, run.step), largest(_arrays(read(run))))
        if self.run_step:
            self._add_parameters(run)
        self._check(run, self._magnitudes.take())

    def on_train_epoch_end(self, run: Run) -> None:
        self._check(run, self._magnitudes.take(wait=True))

    def on_trigger(self, run: Run) -> None:
        if self.run_as_trigger:
            self._check_parameters(run)

    def on_run_end(self) -> None:
        self._others.remove()

    def _add_gradients(self, run: Run, index: int = 0) -> None:
        """Check the gradients that an optimizer's next step uses."""
        parameters = stepped_parameters(run, named_parameters(run.model), index)
        step = run.step if index else run.step + 1  # the steps of the first optimizer are counted
        self._magnitudes.add((GRADIENTS, step), largest(one.grad for _, one in parameters if one.grad is not None))

    def _add_parameters(self, run: Run) -> None:
        self._magnitudes.add((PARAMETERS, run.step), largest(parameter for _, parameter in named_parameters(run.model)))

    def _check_parameters(self, run: Run) -> None:
        self._add_parameters(run)
        self._magnitudes.start()
        self._check(run, self._magnitudes.take(wait=run.mode is None))

    def _check(self, run: Run, magnitudes: Iterable[tuple[tuple[str, int], float]]) -> None:
        for (what, step), magnitude in magnitudes:
            if not math.isfinite(magnitude):
                gradients = gradients_of(run.model).items() if what == GRADIENTS else ()
                names = nonfinite_names(named_parameters(run.model) if what == PARAMETERS else gradients)
                seen = f", seen at step {run.step}" if run.step > step else ""
                cures = {"now": f"in {names}"} if names else {}
                cures["resume"] = "from the last good checkpoint, with a lower learning rate or gradient clipping"
                raise NotFinite(f"{self.name or 'CheckNumerics'}: NaN or infinity in {what} at step {step}{seen}.", **cures)


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers in a value, which may be nested. Objects of other types, such as a cache, are skipped."""
    if hasattr(value, "shape") or isinstance(value, int | float):
        yield value
    else:
        for field in field_values(value):
            yield from _arrays(field)
