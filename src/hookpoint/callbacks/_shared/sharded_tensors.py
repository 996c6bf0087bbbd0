"""Sharded tensors: those of which each process has a part, as FSDP2's parameters are. They are torch's DTensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_sharded(tensor: Any) -> bool:
    """Say whether other processes have parts of this tensor."""
    return hasattr(tensor, "to_local")


def is_apart(tensor: Any) -> bool:
    """Say whether each process has other numbers of this tensor: a DTensor may also be whole on each of them."""
    return is_sharded(tensor) and not all(one.is_replicate() for one in tensor.placements)


def here(tensor: Any) -> Any:
    """Return the numbers of a tensor that this process has, in the memory that they are in."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Any) -> Any:
    """Return a tensor with the numbers of all processes; they call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def whole_state(state: Any) -> Any:
    """Return a state dict, or one of several, with whole tensors; where any is sharded, all processes call this together."""
    if isinstance(state, Mapping):
        return {name: whole_state(one) for name, one in state.items()}
    return whole(state)


def part_like(tensor: Any, other: Any) -> Any:
    """Return this process's part of a whole tensor, in the way that the other one lies; nothing is sent."""
    if not is_sharded(other) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


def gathered(values: Any, like: Any) -> Any:
    """Return the values of each process that has a part of a tensor, in rows; all of them call this together."""
    import torch
    import torch.distributed as dist

    mesh = like.device_mesh
    group = mesh.get_group() if mesh.ndim == 1 else None
    rows = [torch.zeros_like(values) for _ in range(mesh.size())]
    dist.all_gather(rows, values, group=group)
    return torch.stack(rows)
