"""Snapshot: a state whose tensors are on the host, and stay what they are while it is written."""

from __future__ import annotations

from typing import Any

import torch

from hookpoint.storage.tree import Where, copied
from hookpoint.storage.weights_file import identity


class HostCopies:
    """Take snapshots, into memory that is kept from one to the next where shapes and types agree.

    A snapshot holds until the next one is taken. Copies of device tensors wait for the device once, for all together. Where a
    snapshot need not outlive the call, tensors on the host are not copied.
    """

    def __init__(self) -> None:
        self._buffers: dict[Where, torch.Tensor] = {}

    def take(self, state: Any, *, outlives_the_call: bool) -> Any:
        """Return the state with all tensors on the host, in memory that nobody else writes to if it has to outlive the call."""
        old, self._buffers = self._buffers, {}
        taken: dict[tuple[Any, ...], torch.Tensor] = {}  # tensors that are the same memory stay so: tied weights
        devices: set[torch.device] = set()

        def leaf(value: Any, where: Where) -> Any:
            if not isinstance(value, torch.Tensor):
                return value.copy() if outlives_the_call else value
            tensor = value.detach().resolve_conj().resolve_neg()
            if tensor.device.type == "cpu" and not outlives_the_call:
                return tensor
            key = identity(tensor)
            if key is None or key not in taken:
                if tensor.is_cuda:
                    devices.add(tensor.device)
                copy = self._buffers[where] = _copy(tensor, old.get(where))
                if key is None:
                    return copy
                taken[key] = copy
            return taken[key]

        snapshot = copied(state, leaf)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return snapshot


def _copy(tensor: torch.Tensor, buffer: torch.Tensor | None) -> torch.Tensor:
    """Copy a tensor to the host: into the buffer if it is one for such a tensor, strides included, else into a new one."""
    if buffer is None or (buffer.dtype, buffer.shape, buffer.stride()) != (tensor.dtype, tensor.shape, tensor.stride()):
        buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return buffer.copy_(tensor, non_blocking=tensor.is_cuda)
