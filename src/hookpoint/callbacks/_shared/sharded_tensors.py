"""Sharded tensors: torch's DTensors, such as FSDP2's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_sharded(tensor: Any) -> bool:
    """Return whether this is a DTensor."""
    return hasattr(tensor, "to_local")


def is_replicated(tensor: Any) -> bool:
    """Return whether every rank has all values of this tensor. This is true of plain tensors and replicated DTensors."""
    return not is_sharded(tensor) or all(placement.is_replicate() for placement in tensor.placements)


def local_shard(tensor: Any) -> Any:
    """Return this rank's shard of a tensor, without a copy."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def local_values(tensor: Any) -> Any:
    """Return this rank's shard of a tensor, or the values of a sparse tensor, without a copy."""
    tensor = local_shard(tensor)
    return tensor._values() if getattr(tensor, "is_sparse", False) else tensor


def full_tensor(tensor: Any) -> Any:
    """Return the full tensor, gathered from all ranks' shards. This is a collective call if the tensor is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def full_state(state: Any) -> Any:
    """Return a state dict, which may be nested, with full tensors. This is a collective call if any tensor is sharded."""
    if isinstance(state, Mapping):
        return {name: full_state(value) for name, value in state.items()}
    return full_tensor(state)


def shard_like(tensor: Any, other: Any) -> Any:
    """Shard a full tensor in the same way as `other`, and return this rank's shard. Does not communicate."""
    if not is_sharded(other) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def all_gather(values: Any, like: Any) -> Any:
    """Gather `values` from every rank in the mesh of the DTensor `like`, one row per rank. This is a collective call."""
    import torch
    import torch.distributed as dist

    mesh = like.device_mesh
    rows = [torch.zeros_like(values) for _ in range(mesh.size())]
    dist.all_gather(rows, values, group=mesh.get_group() if mesh.ndim == 1 else None)
    return torch.stack(rows)
