"""Device values as floats, without making the training thread wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hookpoint.core.log.metrics import floats_one_by_one


def device_floats(values: Sequence[Any]) -> Callable[[], list[float]]:
    """Start copying values to the host in one go, and return what waits for the copy and gives the floats.

    The training thread queues a stack and a copy into pinned memory behind its own work and goes on. Whoever calls the
    result, a monitor's thread as a rule, waits for the event behind that copy, not for the device.
    """
    first = values[0] if values else None
    if not isinstance(first, torch.Tensor):
        return floats_one_by_one(values)
    if first.device.type != "cuda" or not all(isinstance(v, torch.Tensor) and v.device == first.device for v in values):
        return lambda: [float(value) for value in values]
    with torch.no_grad():
        together = torch.stack([value.reshape(()).to(torch.float64) for value in values])
        host = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
        host.copy_(together, non_blocking=True)
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[float]:
        copied.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return wait
