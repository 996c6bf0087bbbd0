"""Torch file: write a tree with torch.save, and read it with torch.load and weights_only=True."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from hookpoint.storage.checkpoint._encoding import for_torch, restored
from hookpoint.storage.checkpoint.tree import Where, copied


def write_tree(tree: Any, stream: Any) -> None:
    """Write a tree of plain types and CPU tensors to a stream."""
    torch.save(for_torch(_compact(tree)), stream)


def read_tree(source: Any) -> Any:
    """Read a tree from a path or an open file. Its tensors are loaded onto the CPU."""
    return restored(torch.load(source, map_location="cpu", weights_only=True))


def _compact(tree: Any) -> Any:
    """Clone tensors that are small views of a large storage. Otherwise, torch.save would write the whole storage."""
    used_bytes: Counter[int] = Counter()  # keyed by the storage's address
    written: dict[int, torch.Tensor] = {}  # keyed by the tensor's id

    def count(tensor: Any, where: Where) -> Any:
        if isinstance(tensor, torch.Tensor) and id(tensor) not in written:
            written[id(tensor)] = tensor
            used_bytes[tensor.untyped_storage().data_ptr()] += tensor.numel() * tensor.element_size()
        return tensor

    def clone(tensor: Any, where: Where) -> Any:
        if isinstance(tensor, torch.Tensor):
            storage = tensor.untyped_storage()
            if storage.nbytes() > used_bytes[storage.data_ptr()] and written[id(tensor)] is tensor:
                written[id(tensor)] = tensor.clone()
            return written[id(tensor)]
        return tensor

    counted = copied(tree, count)
    storages = {storage.data_ptr(): storage.nbytes() for storage in (one.untyped_storage() for one in written.values())}
    if all(size <= used_bytes[address] for address, size in storages.items()):
        return counted
    return copied(counted, clone)
