"""Local shards: access the part of a tensor that is on this rank, and run a collective on many tensors at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch


def shard_like(tensor: Any, like: Any) -> Any:
    """Shard a full tensor in the same way as the tensor `like`, and return the resulting DTensor.

    If `like` is not sharded, return the tensor unchanged. Every rank has the full tensor, so the ranks do not communicate.
    """
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.detach().to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def local_shard(tensor: Any) -> torch.Tensor:
    """Return the local part of a DTensor without copying it. Other tensors are returned unchanged."""
    local: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return local


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a DTensor, without importing the DTensor class, which takes a second."""
    return hasattr(tensor, "device_mesh")


def by_kind(tensors: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group tensors by dtype and device."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def in_one_message(
    tensors: Sequence[torch.Tensor], collective: Callable[[torch.Tensor], object], *, writes: bool = True
) -> None:
    """Flatten several tensors into one tensor, and call a collective on it. All tensors must have the same dtype and device.

    With `writes=True`, the result is copied back to the tensors.
    """
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    collective(flat)
    if writes:
        for tensor, values in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(values.view_as(tensor))
