"""The gradients that the next optimizer step uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run, loop_of


def has_step_hooks(run: Run) -> bool:
    """Return whether the run is notified of each optimizer step, by optimizer hooks or by the trainer that drives the run."""
    return loop_of(run).reports_steps


def require_step_hooks(run: Run, owner: str, purpose: str) -> None:
    """Raise unless the run is notified of each optimizer step."""
    if not has_step_hooks(run):
        raise BadLoop(f"{owner} needs an optimizer to {purpose} before its step.", give="optimizer=...")


def step_gradients(run: Run, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the gradient of each parameter, and skip parameters without a gradient.

    Call this function at on_step_begin, after any gradient clipping. The yielded gradients are unscaled.
    """
    scale = getattr(_first_optimizer(run), "grad_scale", None)  # set if the optimizer itself unscales the gradients
    for name, parameter in named:
        if parameter.grad is not None:
            yield name, parameter.grad if scale is None else parameter.grad / scale


def _first_optimizer(run: Run) -> Any:
    return next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
