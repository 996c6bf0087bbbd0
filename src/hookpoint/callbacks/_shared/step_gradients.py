"""The gradients that the next step of an optimizer uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadLoop
from hookpoint.core.hooks.entry import Entry
from hookpoint.core.run.run import Run, loop_of


def has_step_hooks(run: Run) -> bool:
    """Return whether the run is notified of each optimizer step, by optimizer hooks or by the trainer that drives the run."""
    return loop_of(run).reports_steps


def require_step_hooks(run: Run, owner: str, purpose: str) -> None:
    """Raise unless the run is notified of each optimizer step."""
    if has_step_hooks(run):
        return
    if run.optimizers:
        kind = type(run.optimizers[0]).__name__
        raise BadLoop(f"{owner} cannot {purpose}: {kind} has no step hooks.", give="an optimizer from torch.optim")
    raise BadLoop(f"{owner} needs an optimizer to {purpose}.", give="optimizer=...")


class OtherOptimizers:
    """Observe the steps of all optimizers except the first. Only the first one's steps fire on_step_begin and on_step_end."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def observe(
        self, run: Run, owner: Callback, before: Callable[[Run, int], None], after: Callable[[Run, int], None] | None = None
    ) -> None:
        """Call `before` and `after` at each step, with the run and the optimizer's index in `run.optimizers`.

        The functions are called under the same conditions as the owner's handlers for on_step_begin and on_step_end: wrappers
        such as EnableCallbackIf and `on_error` apply.
        """
        self.remove()
        entry = next((entry for entry in run.hooks.entries if entry.subject is owner), None)
        for index, optimizer in list(enumerate(run.optimizers))[1:]:
            if hasattr(optimizer, "register_step_pre_hook"):
                self._handles.append(optimizer.register_step_pre_hook(_hook(before, entry, "on_step_begin", run, index)))
                if after is not None:
                    self._handles.append(optimizer.register_step_post_hook(_hook(after, entry, "on_step_end", run, index)))

    def remove(self) -> None:
        """Stop observing."""
        while self._handles:
            self._handles.pop().remove()

    def __reduce__(self) -> tuple[Any, ...]:  # a copy, such as one for a worker process, observes nothing
        return type(self), ()


def _hook(function: Callable[[Run, int], None], entry: Entry | None, point: str, run: Run, index: int) -> Callable[..., None]:
    """Return an optimizer hook that calls the function, if the wrappers around the callback in `entry` allow it."""
    if entry is None:  # another callback calls the owner's handlers
        return lambda *_: function(run, index)
    gates, contained = entry.gates(), entry.contained(function, point)

    def call(*_: Any) -> None:
        try:
            if not gates or entry.decided(point, lambda: all(gate.ready(run, None) for gate in gates)):
                contained(run, index)
        except BaseException as error:
            error.add_note(f"in callback {entry.name} at {point} (step {run.step}, rank {run.rank})")
            raise

    return call


def stepped_parameters(run: Run, named: Iterable[tuple[str, Any]], index: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that an optimizer's step uses, with their names. `index` is its index in `run.optimizers`.

    Parameters that belong to no optimizer are read at the first optimizer's step.
    """
    if len(run.optimizers) < 2:
        yield from named
        return
    held = [_parameters_of(optimizer) for optimizer in run.optimizers]
    others = set().union(*held[1:]) - held[0]
    for name, parameter in named:
        if id(parameter) in held[index] or (index == 0 and id(parameter) not in others):
            yield name, parameter


def step_gradients(run: Run, named: Iterable[tuple[str, Any]], index: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the name and the gradient of each parameter that a step uses, and skip parameters without a gradient.

    Call this function at on_step_begin or from `OtherOptimizers`, after any gradient clipping. The yielded gradients are
    unscaled.
    """
    optimizer = run.optimizers[index] if run.optimizers else None
    scale = getattr(optimizer, "grad_scale", None)  # set if the optimizer itself unscales the gradients
    for name, parameter in stepped_parameters(run, named, index):
        if parameter.grad is not None:
            yield name, parameter.grad if scale is None else parameter.grad / scale


def _parameters_of(optimizer: Any) -> set[int]:
    if not hasattr(optimizer, "register_step_pre_hook"):  # its steps cannot be observed
        return set()
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
