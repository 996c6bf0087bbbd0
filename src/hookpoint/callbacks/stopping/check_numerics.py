"""CheckNumerics: end the run when parameters, gradients or other tensors hold NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Unpack

from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.callbacks._shared.numerics import largest, nonfinite_names
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.checkpoint.stateful import named_parameters
from hookpoint.core.errors import BadArgument, BadLoop, NotFinite
from hookpoint.core.fields import field_values
from hookpoint.core.run.run import Run


class CheckNumerics(Callback):
    """Raise NotFinite when a parameter holds NaN or infinity; or a gradient, the loss, or tensors that are named.

    Parameters are checked before training and when triggered, as in tensorpack; with `run_step` after each step too.
    `gradients` are checked before each optimizer step, the `loss` and `tensors` after each iteration: these are functions of
    the run, by name, such as `{"logits": lambda run: run.outputs}`, and return one tensor or several. No step waits for a GPU:
    what was computed there is read when it has come, within some 50 steps, at the end of the epoch at the latest.

    Listens to on_run_begin of a fresh run, on_step_begin, on_train_iter_end and on_train_epoch_end; triggered at the end of
    each complete epoch, unless `.when(...)` says otherwise. Keeps nothing in the checkpoint. Runs on all ranks. A step pays for
    two calls, and for one pass over each thing that is checked with each step.

    >>> check = CheckNumerics(tensors={"error": lambda run: run.batch})
    >>> with Loop([CheckNumerics(parameters=False, tensors={"error": lambda run: run.batch})]) as run:
    ...     for batch in run.batches([0.5, float("nan")]): pass
    Traceback (most recent call last):
    ...
    hookpoint.core.errors.NotFinite: CheckNumerics: NaN or infinity in error at step 2...
    """

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
        self.run_as_trigger = run_as_trigger and parameters
        self.run_step = run_step and parameters
        self.parameters = parameters
        self.gradients = gradients
        self.tensors: dict[str, Callable[[Run], Any]] = {**({"loss": _loss} if loss else {}), **(tensors or {})}
        for name, function in self.tensors.items():
            if not callable(function):
                raise BadArgument(
                    f"CheckNumerics(tensors={{{name!r}: ...}}) takes functions of the run.", write="lambda run: run.outputs"
                )
        if not (self.run_as_trigger or self.run_step or gradients or self.tensors):
            raise BadArgument("CheckNumerics has nothing to check.", give="parameters, gradients, loss or tensors")
        self._late = AsyncScalars()

    def on_setup(self, run: Run) -> None:
        own = self.name or "CheckNumerics"
        if (self.parameters or self.gradients) and next(named_parameters(run.model), None) is None:
            raise BadLoop(f"{own} finds no parameters.", give="model=..., or parameters=False and tensors=...")
        optimizer = next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
        if self.gradients and not hasattr(optimizer, "register_step_pre_hook"):
            raise BadLoop(f"{own} sees no optimizer step, before which gradients could be checked.", give="optimizer=...")

    def on_run_begin(self, run: Run) -> None:
        self._late.clear()
        if self.parameters and not run.resuming:
            self._check_parameters(run)

    def on_step_begin(self, run: Run) -> None:
        if self.gradients:
            self._late.add(("the gradients", run.step + 1), largest(gradient for _, gradient in _gradients(run)))

    def on_train_iter_end(self, run: Run) -> None:
        for name, function in self.tensors.items():
            self._late.add((name, run.step), largest(_several(function(run))))
        if self.run_step:
            self._late.add(("the parameters", run.step), largest(one for _, one in named_parameters(run.model)))
        self._look_at(run, self._late.take())

    def on_train_epoch_end(self, run: Run) -> None:
        self._look_at(run, self._late.take(wait=True))

    def on_trigger(self, run: Run) -> None:
        if self.run_as_trigger:
            self._check_parameters(run)

    def _check_parameters(self, run: Run) -> None:
        self._late.add(("the parameters", run.step), largest(one for _, one in named_parameters(run.model)))
        self._late.start()
        self._look_at(run, self._late.take(wait=run.mode is None))

    def _look_at(self, run: Run, found: Iterable[tuple[tuple[str, int], float]]) -> None:
        for (what, step), value in found:
            if not math.isfinite(value):
                named = {"the parameters": named_parameters(run.model), "the gradients": _gradients(run)}.get(what, iter(()))
                names = nonfinite_names(named)
                seen = f", seen at step {run.step}" if run.step > step else ""
                raise NotFinite(
                    f"{self.name or 'CheckNumerics'}: NaN or infinity in {what} at step {step}{seen}.",
                    **({"now": f"in {names}"} if names else {}),
                    resume="from the last good checkpoint, with a lower learning rate or clipped gradients",
                )


def _loss(run: Run) -> Any:
    return run.loss if run.loss is not None else run.metrics.as_logged("loss")  # read as a metric it would be waited for


def _gradients(run: Run) -> Iterator[tuple[str, Any]]:
    return ((name, one.grad) for name, one in named_parameters(run.model) if one.grad is not None)


def _several(value: Any) -> Iterator[Any]:
    """Yield the arrays and numbers in a value, at any depth; outputs may hold other things too, such as a cache."""
    if hasattr(value, "shape") or isinstance(value, int | float):
        yield value
    else:
        for one in field_values(value):
            yield from _several(one)
