"""The gradients that the next optimizer step uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def step_gradients(optimizer: Any, named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the gradients of named parameters at on_step_begin: clipped and unscaled. Parameters without one are left out."""
    scale = getattr(optimizer, "grad_scale", None)  # set if the optimizer itself divides by it
    for name, parameter in named:
        if parameter.grad is not None:
            yield name, parameter.grad if scale is None else parameter.grad / scale
