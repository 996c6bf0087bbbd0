"""Part of: what a process has of a tensor that is whole."""

from __future__ import annotations

from typing import Any

import torch


def part_of(tensor: Any, like: Any) -> Any:
    """Return this process's part of a whole tensor, as another one lies; nothing is sent, for everybody has the whole."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    tensor = tensor.detach().to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def here(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor that are on this process, in the memory that they are in."""
    found: Any = tensor
    return found.to_local() if is_sharded(tensor) else tensor


def is_sharded(tensor: Any) -> bool:
    """Say whether this is a DTensor: to import its class takes a second, which one process alone need not pay."""
    return hasattr(tensor, "device_mesh")
