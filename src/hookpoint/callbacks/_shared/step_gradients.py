"""The gradients that an optimizer's step is about to use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def step_gradients(optimizer: Any, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the gradients of named parameters that have one, at on_step_begin: clipped, and no longer scaled."""
    scale = getattr(optimizer, "grad_scale", None)  # set where the step itself, and not the scaler, divides by it
    for name, parameter in named:
        if parameter.grad is not None:
            yield name, parameter.grad if scale is None else parameter.grad / scale
