"""Data: whatever `fit`, `validate` and `predict` take, as something to iterate over, its batches on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from hookpoint.core.errors import BadLoop, text


def as_loader(data: Any, batch_size: int | None, *, shuffle: bool) -> Iterable[Any]:
    """Return a loader for the data: itself if it gives batches, one over tensors or arrays if it is a tuple of those."""
    if isinstance(data, tuple):
        if batch_size is None:
            raise BadLoop(text("a tuple of tensors or arrays needs a batch size.", give="batch_size=32"))
        tensors = [torch.as_tensor(part) for part in data]
        lengths = {len(tensor) for tensor in tensors}
        if len(lengths) != 1:
            raise BadLoop(text("the tensors of a data set must be equally long.", got=", ".join(map(str, sorted(lengths)))))
        return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle)
    if batch_size is not None:
        raise BadLoop(text("batch_size is for a tuple of tensors or arrays; a loader has its own.", drop="batch_size"))
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise BadLoop(text(f"{data!r} gives no batches.", give="a DataLoader, an iterable of batches, or a tuple of tensors"))
    loader: Iterable[Any] = data
    return loader


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with every tensor in it on the device: in tuples, lists, mappings and dataclasses, nested as they are."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        moved = {key: move(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(move(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: move(getattr(batch, field.name), device) for field in dataclasses.fields(batch) if field.init}
        return dataclasses.replace(batch, **fields)
    return batch
