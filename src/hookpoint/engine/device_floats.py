"""Device floats: convert logged tensors on a device to floats without blocking the training thread.

The Runner and the public Loop pass `device_floats` to the core, whose means call it (`core/log/mean.py`). Tensors on the host
are converted when they are logged (`core/log/floats.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hookpoint.core.log.floats import floats_one_by_one


def device_floats(values: Sequence[Any]) -> Callable[[], list[float]]:
    """Start copying all values to the host in one transfer. Return a function that waits for the copy and returns the floats.

    The training thread only enqueues two operations: it stacks the values and copies the stack to pinned memory. The thread
    that calls the returned function, usually the monitors' thread, waits for this copy but not for later work on the device.
    """
    first = values[0] if values else None
    if not isinstance(first, torch.Tensor):
        return floats_one_by_one(values)
    if first.device.type != "cuda" or not all(isinstance(v, torch.Tensor) and v.device == first.device for v in values):
        return lambda: [float(value) for value in values]
    with torch.no_grad():
        stacked = torch.stack([value.reshape(()).to(torch.float64) for value in values])
        host = torch.empty(len(values), dtype=torch.float64, pin_memory=True)
        host.copy_(stacked, non_blocking=True)
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[float]:
        copied.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return wait
