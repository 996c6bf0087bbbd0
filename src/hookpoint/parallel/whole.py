"""Whole: tensors that lie in parts on several processes, put together and taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tree: Any, *, keep: bool = True) -> Any:
    """Return dicts, lists and tuples with every tensor in them whole and on the host; all processes call this together.

    Whoever does not `keep` them takes part, and gets None instead: memory for one whole tensor at a time is enough.
    """
    if isinstance(tree, torch.Tensor):
        full = tree.detach().full_tensor() if isinstance(tree, DTensor) else tree.detach()  # type: ignore[no-untyped-call]
        return full.cpu() if keep else None
    if isinstance(tree, Mapping):
        found = {key: whole(value, keep=keep) for key, value in tree.items()}
        return found if keep else None
    if isinstance(tree, list | tuple):
        parts = [whole(value, keep=keep) for value in tree]
        return type(tree)(parts) if keep else None
    return tree if keep else None


def part_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a whole tensor, as another one lies; nothing is sent, for everybody has the whole."""
    if not isinstance(like, DTensor) or isinstance(tensor, DTensor):
        return tensor
    tensor = tensor.detach().to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
