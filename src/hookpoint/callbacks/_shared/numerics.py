"""Check tensors for NaN and infinity without waiting for a device."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

from hookpoint.callbacks._shared.async_scalars import AsyncScalars
from hookpoint.callbacks._shared.sharded_tensors import local_shard
from hookpoint.core.text.terminal import few

MAX_LISTED = 3


def largest(values: Iterable[Any]) -> Any:
    """Return the largest magnitude in tensors, arrays and numbers. The result stays on their device.

    The result is finite only if all values are finite. Integers and lazy parameters without a value are ignored. The result is
    0 if there are no values. Each rank checks its local shards only.

    >>> largest([0.5, -2.0, 7]), largest([1.0, float("nan")])
    (2.0, nan)
    """
    torch, tensors, magnitudes = sys.modules.get("torch"), [], []
    for value in values:
        # While another thread is importing torch, `torch.Tensor` may not exist yet.
        if torch is not None and hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):
            tensors.append(value)
        else:
            magnitudes.append(_magnitude(value))
    host = next((value for value in magnitudes if not math.isfinite(value)), max(magnitudes, default=0.0))
    if torch is None or not tensors or not math.isfinite(host):
        return host
    with torch.no_grad():
        shards = [local_shard(tensor.detach()) for tensor in tensors if not torch.nn.parameter.is_lazy(tensor)]
        floats = [_computable(shard) for shard in shards if shard.numel() and (shard.is_floating_point() or shard.is_complex())]
        if len(floats) == 1:
            return torch.linalg.vector_norm(floats[0], math.inf)
        return torch.nn.utils.get_total_norm(floats, math.inf) if floats else host


def nonfinite_names(named: Iterable[tuple[str, Any]]) -> str:
    """Return one string with the names of the values that contain NaN or infinity. Waits for the device.

    A long list of names is shortened. The string is empty if all values are finite.
    """
    magnitudes = AsyncScalars()
    for name, value in named:
        magnitudes.add(name, largest([value]))
    names = [name for name, magnitude in magnitudes.take(wait=True) if not math.isfinite(magnitude)]
    return few(names, MAX_LISTED)


def _computable(tensor: Any) -> Any:
    return tensor.float() if tensor.element_size() == 1 else tensor  # torch cannot compute with 8-bit floats


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
