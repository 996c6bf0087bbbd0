"""Snapshot: a state whose tensors are on the host, and stay what they are while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.storage.checkpoint.tree import Where, copied, is_tensor, memory_of


class Snapshots:
    """Take snapshots of states, into memory that is kept from one to the next where shapes and types agree.

    A snapshot holds until the next one is taken. Copies of device tensors wait for the device once, for all together. Where a
    snapshot need not outlive the call, tensors on the host are not copied.
    """

    def __init__(self) -> None:
        self._buffers: dict[Where, tuple[Any, Any]] = {}  # what they were made for, and they themselves

    def take(self, state: Mapping[str, Any], *, outlives_the_call: bool) -> dict[str, Any]:
        """Return the state with all tensors on the host, in memory of our own if it has to outlive the call.

        Raises NotSaveable, naming the first thing that a checkpoint cannot keep.
        """
        old, self._buffers = self._buffers, {}
        taken: dict[tuple[Any, ...], Any] = {}  # tensors that are the same memory stay so: tied weights
        devices = set()

        def leaf(value: Any, where: Where) -> Any:
            if not is_tensor(value):
                return value.copy() if outlives_the_call else value
            tensor = value.detach().resolve_conj().resolve_neg()
            if tensor.device.type == "cpu" and not outlives_the_call:
                return tensor
            memory = memory_of(value) or where  # not that of `tensor`, which may be gone when the next one gets its place
            if memory not in taken:
                self._buffers[where] = _copy(tensor, *old.get(where, (None, None)))
                taken[memory] = self._buffers[where][1]
                if tensor.is_cuda:
                    devices.add(tensor.device)
            return taken[memory]

        try:
            snapshot: dict[str, Any] = copied(dict(state), leaf)
            for device in devices:
                _wait_for(device)
        except BaseException:
            self._buffers = {}  # there may be too little memory for all of them: the training gets it back
            raise
        return snapshot


def _copy(tensor: Any, made_for: Any, buffer: Any) -> tuple[Any, Any]:
    """Copy a tensor to the host: into the buffer if it was made for one like this, strides included, else into a new one."""
    import torch

    like = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cuda)
    if made_for != like:
        buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return like, buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def _wait_for(device: Any) -> None:
    import torch

    torch.cuda.current_stream(device).synchronize()
