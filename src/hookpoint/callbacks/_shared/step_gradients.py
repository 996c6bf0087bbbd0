"""The gradients that the next optimizer step uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookpoint.core.errors import BadLoop
from hookpoint.core.run.run import Run


def require_step_hooks(run: Run, owner: str, purpose: str) -> None:
    """Raise unless the run has an optimizer with hooks before its steps."""
    optimizer = next(iter(run.optimizer.values()), None) if isinstance(run.optimizer, Mapping) else run.optimizer
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise BadLoop(f"{owner} needs an optimizer to {purpose} before its step.", give="optimizer=...")


def step_gradients(optimizer: Any, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the gradients of named parameters at on_step_begin: clipped and unscaled. Parameters without one are left out."""
    scale = getattr(optimizer, "grad_scale", None)  # set if the optimizer itself divides by it
    for name, parameter in named:
        if parameter.grad is not None:
            yield name, parameter.grad if scale is None else parameter.grad / scale
