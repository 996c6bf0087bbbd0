"""How many samples a batch holds, and how many batches a loader, whatever they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def count_samples(batch: Any) -> int:
    """Return the length of the first dimension of the first array in a batch; where there is none, its number of items.

    Tuples, lists, mappings and dataclasses are opened as columns of a batch, unless they hold no array: a list of tuples is a
    list of samples, and a list of anything else that is no container counts by its length. What cannot be opened counts as
    one.

    >>> count_samples([["a", "b", "c"], [0, 1, 0]])
    3
    """
    if isinstance(batch, (list, tuple)):  # first what nearly every batch is
        for part in batch:
            shape = getattr(part, "shape", None)
            if shape is not None:
                return int(shape[0]) if len(shape) else 1
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, Mapping):
        return count_samples(list(batch.values()))
    if isinstance(batch, list | tuple) and batch:
        first = batch[0]
        is_samples = isinstance(batch, list) and isinstance(first, tuple)
        if is_samples or not isinstance(first, list | tuple | Mapping):
            return len(batch)
        return count_samples(first)
    fields = getattr(batch, "__dataclass_fields__", None)
    if fields and not isinstance(batch, type):
        return count_samples([getattr(batch, name) for name in fields])
    return 1


def length_of(loader: Any) -> int | None:
    """Return how many batches a loader has, or None where it cannot tell."""
    try:
        return len(loader)
    except (AttributeError, NotImplementedError, TypeError):  # many a loader has __len__ and still cannot tell
        return None
