"""Torch file: a tree with tensors as torch.save writes it and torch.load reads it with weights_only=True, and never without."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from hookpoint.storage.checkpoint._encoding import for_torch, restored
from hookpoint.storage.checkpoint.tree import Where, copied


def write_tree(tree: Any, stream: Any) -> None:
    """Write a tree of plain types and host tensors to anything with a `write`."""
    torch.save(for_torch(_compact(tree)), stream)


def read_tree(source: Any) -> Any:
    """Return the tree that was written to a path or an open file, its tensors on the host."""
    return restored(torch.load(source, map_location="cpu", weights_only=True))


def _compact(tree: Any) -> Any:
    """Return the tree with tensors of their own where they are small parts of a large storage, which would be written whole."""
    used: Counter[int] = Counter()
    kept: dict[int, torch.Tensor] = {}

    def look(tensor: Any, where: Where) -> Any:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in kept:
            kept[id(tensor)] = tensor
            used[tensor.untyped_storage().data_ptr()] += tensor.numel() * tensor.element_size()
        return tensor

    def cut(tensor: Any, where: Where) -> Any:
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            if storage.nbytes() > used[storage.data_ptr()] and kept[id(tensor)] is tensor:
                kept[id(tensor)] = tensor.clone()
            return kept[id(tensor)]
        return tensor

    return copied(copied(tree, look), cut)
