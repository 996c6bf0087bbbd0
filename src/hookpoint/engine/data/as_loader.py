"""as_loader: convert the data passed to `fit`, `validate` and `predict` to a loader, and move batches to the device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, MutableMapping
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hookpoint.core.data.array_batches import AUTO, BatchSize, Reader, check_data, takes_batch_size
from hookpoint.core.fields import is_dataclass, named_fields


def as_loader(data: Any, batch_size: BatchSize = AUTO, *, shuffle: bool, reader: Reader = "fit") -> Iterable[Any]:
    """Return a loader for a dataset, or for a tuple of tensors or arrays. Anything else is returned unchanged.

    With `batch_size=None`, each item of a dataset is a batch. The loader yields these batches in order and unchanged. The
    error for invalid data shows how to call the method `reader`.
    """
    check_data(data, batch_size, reader)
    if isinstance(data, tuple):
        data = TensorDataset(*map(torch.as_tensor, data))
    is_iterable = isinstance(data, IterableDataset)
    if isinstance(batch_size, int):
        # torch cannot shuffle an empty dataset. In order, it yields no batch, which the run reports like any other empty data.
        can_shuffle = not is_iterable and len(data) > 0
        return DataLoader(data, batch_size=batch_size, shuffle=shuffle and can_shuffle)
    if batch_size is None and isinstance(data, Dataset) and not is_iterable and hasattr(data, "__len__"):
        return DataLoader(data, batch_size=None, collate_fn=unchanged)
    loader: Iterable[Any] = data
    return loader


def loaders_of_fit(train: Any, val: Any, batch_size: BatchSize) -> tuple[Iterable[Any], Iterable[Any] | None]:
    """Return the training and validation loaders for `fit`. The batch size applies only to data that is not batched yet."""
    train = as_loader(train, batch_size if takes_batch_size(train) or not takes_batch_size(val) else AUTO, shuffle=True)
    if val is None:
        return train, None
    return train, as_loader(val, batch_size if takes_batch_size(val) or batch_size is None else AUTO, shuffle=False)


def unchanged(batch: Any) -> Any:
    """Return a batch unchanged. Unlike a lambda, this collate function can be pickled."""
    return batch


def move(batch: Any, device: torch.device, *, waits: bool = False) -> Any:
    """Move every tensor in a batch to the device, including tensors in nested tuples, lists, mappings and dataclasses.

    Other objects with a `to` method, such as packed sequences, are moved with this method. With `waits=True`, the function
    returns only after the tensors are copied. When you copy to the host, pass `waits=True`. Otherwise, your code could read the
    values before they arrive.
    """
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=not waits), lambda other: other.to(device))


def map_tensors(batch: Any, function: Callable[[torch.Tensor], Any], move: Callable[[Any], Any] | None = None) -> Any:
    """Apply a function to every tensor in a batch. If `move` is given, apply it to other objects with a `to` method.

    >>> map_tensors({"x": torch.ones(2), "n": 3}, lambda tensor: tensor.sum().item())
    {'x': 2.0, 'n': 3}
    """
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if move is not None and callable(getattr(batch, "to", None)) and not isinstance(batch, type):
        return move(batch)
    again = partial(map_tensors, function=function, move=move)
    if type(batch) is dict:
        return {key: again(value) for key, value in batch.items()}
    if isinstance(batch, MutableMapping):
        mapped = copy.copy(batch)
        for key, value in batch.items():  # Hugging Face's ModelOutput does not support `update`
            mapped[key] = again(value)
        return mapped
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(again, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(again, batch))
    if is_dataclass(batch):
        fields = {field.name: again(getattr(batch, field.name)) for field in dataclasses.fields(batch) if field.init}
        return dataclasses.replace(batch, **fields)
    return batch


def described(batch: Any) -> str:
    """Describe a batch by the dtypes and shapes of its tensors."""
    if isinstance(batch, torch.Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape)}"
    if isinstance(batch, tuple | list):
        return "(" + ", ".join(map(described, batch)) + ")"
    fields = named_fields(batch)
    if fields or type(batch) is dict:
        return "{" + ", ".join(f"{name}: {described(value)}" for name, value in fields.items()) + "}"
    return type(batch).__name__
