"""Streams: how to get behind the first samples of a DataLoader over an IterableDataset."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from hookpoint.core.data.samples import length_of


class LaterSamples(IterableDataset[Any]):
    """A stream without its first so many samples, which are read and dropped."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset = dataset
        self._samples = samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self._samples, None)


def later_batches(loader: DataLoader[Any], samples: int) -> Iterator[Any]:
    """Return the batches of what follows so many samples, read in this process."""
    twin = copy.copy(loader)
    twin.__dict__.update({"dataset": LaterSamples(loader.dataset, samples), "_iterator": None})  # setting it is refused
    return iter(twin)


def batches_after(loader: DataLoader[Any], samples: int, batch_size: int) -> int | None:
    """Return how many batches follow so many samples, where the data set knows its length."""
    length = length_of(loader.dataset)
    if length is None:
        return None
    left = max(length - samples, 0)
    return left // batch_size if loader.drop_last else -(-left // batch_size)
