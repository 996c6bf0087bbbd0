"""Part of: what a process has of a tensor that is whole."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def part_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor, as another one lies; nothing is sent, for everybody has the whole."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    tensor = tensor.detach().to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def here(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor that are on this process, in the memory that they are in."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
