"""Numerics: whether tensors hold nothing but numbers, found out without waiting for a device."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.callbacks._shared.sharded_tensors import here

MOST_NAMED = 3


def largest(tensors: Iterable[Any]) -> Any:
    """Return the largest magnitude in tensors, arrays and numbers, on its device: finite if and only if all of them are.

    Integers do not count. Where there is nothing to look at, it is 0.

    >>> largest([0.5, -2.0, 7]), largest([1.0, float("nan")])
    (2.0, nan)
    """
    found = list(tensors)
    torch = sys.modules.get("torch")
    ours = [one for one in found if torch is not None and isinstance(one, torch.Tensor)]
    others = [_magnitude(one) for one in found if not any(one is tensor for tensor in ours)]
    host = next((value for value in others if not math.isfinite(value)), max(others, default=0.0))
    if not ours or not math.isfinite(host):
        return host
    assert torch is not None
    with torch.no_grad():
        parts = [here(one.detach()) for one in ours]  # each process looks at what it has of sharded ones
        counted = [_computable(one) for one in parts if one.numel() and (one.is_floating_point() or one.is_complex())]
        if len(counted) == 1:
            return torch.linalg.vector_norm(counted[0], math.inf)
        return torch.nn.utils.get_total_norm(counted, math.inf) if counted else host


def bad_ones(named: Iterable[tuple[str, Any]]) -> str:
    """Return the names of what is not finite, as part of a sentence; empty where nothing is. Waits for the device, once."""
    late = AsyncScalars()
    for name, value in named:
        late.add(name, largest([value]))
    names = [name for name, magnitude in late.take(wait=True) if not math.isfinite(magnitude)]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _computable(tensor: Any) -> Any:
    return tensor.float() if tensor.element_size() == 1 else tensor  # an 8-bit float can be kept, not computed with


def _magnitude(value: Any) -> float:
    if isinstance(value, int):
        return 0.0
    if isinstance(value, float):
        return abs(value)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return abs(float(value))
    array = numpy.asarray(value)
    return float(numpy.abs(array).max()) if array.size and array.dtype.kind in "fc" else 0.0
