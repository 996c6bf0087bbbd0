"""Snapshots: copy the tensors in a state to host memory."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from hookpoint.storage.checkpoint.tree import Where, copied, is_tensor, memory_of, tensors_in


class Snapshots:
    """Take snapshots of states. A tensor with the same layout as in the last snapshot is copied to the same buffer.

    A snapshot is valid until the next snapshot is taken. Taking a snapshot synchronizes each device once. Tensors
    that are already on the host are copied only with `outlives_the_call=True`.
    """

    def __init__(self) -> None:
        self._buffers: dict[Where, tuple[Any, Any]] = {}  # each tensor's layout and buffer

    def missing_bytes(self, state: Mapping[str, Any], *, enough: float = 0) -> int:
        """Return how much host memory a copy of the state needs in addition to the buffers of the last snapshot.

        If the tensors take less than `enough` bytes in total, return this total, which is faster to compute.
        """
        tensors = tensors_in(state)
        at_most: int = sum(tensor.nbytes for tensor in tensors)
        if at_most < enough:
            return at_most
        tied = {(tensor.device, tensor.data_ptr(), tensor.nbytes): tensor for tensor in tensors}  # tied tensors are copied once
        buffers = Counter(layout for layout, _ in self._buffers.values())
        buffers.subtract(map(_layout, tied.values()))
        sizes = {_layout(tensor): tensor.nbytes for tensor in tied.values()}
        return sum(-count * sizes[layout] for layout, count in buffers.items() if count < 0)

    def take(self, state: Mapping[str, Any], *, outlives_the_call: bool) -> dict[str, Any]:
        """Return the state with all tensors on the host.

        Pass `outlives_the_call=True` if the state may change while the snapshot is in use. Tensors and arrays that are already
        on the host are then copied too.

        Raises NotSaveable if a checkpoint cannot store a value. The error names the first such value.
        """
        old, self._buffers = self._buffers, {}
        copies: dict[tuple[Any, ...], Any] = {}  # keyed by memory location, so that tied weights stay tied
        devices = set()

        def leaf(value: Any, where: Where) -> Any:
            if not is_tensor(value):
                return value.copy() if outlives_the_call else value
            tensor = value.detach().resolve_conj().resolve_neg()
            if tensor.device.type == "cpu" and not outlives_the_call:
                return tensor
            # Identify the tensor by the memory of `value`. `tensor` may be a temporary copy, and another tensor may later
            # reuse the memory of this copy.
            memory = memory_of(value) or where
            if memory not in copies:
                self._buffers[where] = _copy(tensor, *old.get(where, (None, None)))
                copies[memory] = self._buffers[where][1]
                if tensor.is_cuda:
                    devices.add(tensor.device)
            return copies[memory]

        try:
            snapshot: dict[str, Any] = copied(dict(state), leaf)
            for device in devices:
                sys.modules["torch"].cuda.current_stream(device).synchronize()
        except BaseException:
            self._buffers = {}  # free the buffers, because the host may be short of memory
            raise
        return snapshot


def _copy(tensor: Any, layout: Any, buffer: Any) -> tuple[Any, Any]:
    """Copy a tensor to the host. If the buffer's layout does not match, the tensor is copied to a new buffer."""
    import torch

    wanted = _layout(tensor)
    if layout != wanted:
        buffer = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return wanted, buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def _layout(tensor: Any) -> tuple[Any, ...]:
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cuda)
