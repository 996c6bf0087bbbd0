"""SeededSamples: random augmentation that is the same for a sample of an epoch, whoever loads it and whenever."""

from __future__ import annotations

import hashlib
import operator
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from hookpoint.core.checkpoint.randomness import put_state, state_of
from hookpoint.core.errors import BadData


class SeededSamples(Dataset[Any]):
    """Draw the random numbers inside of a data set from its sample: from a seed, the epoch and the index.

    A sample is then the same whatever the number of workers is and wherever a run is resumed, and another one in each epoch.
    Python's, NumPy's and torch's global generators on the host are seeded for the time of a `dataset[index]` and put back;
    generators of the data set's own are left alone. That costs about 70 microseconds a sample, 25 where NumPy is not imported.
    A loop sets the epoch; in a loop of your own, call `set_epoch`, which worker processes see at once.

    >>> class Noisy(Dataset):
    ...     def __getitem__(self, index):
    ...         return index + torch.rand(())
    >>> data = SeededSamples(Noisy(), seed=7)
    >>> sample = data[3]
    >>> data[3] == sample
    tensor(True)
    >>> data.set_epoch(1)
    >>> data[3] == sample
    tensor(False)
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise BadData(
                f"SeededSamples seeds by index, and {type(dataset).__name__} has none.",
                give="a data set with __getitem__ and __len__",
                seed="an IterableDataset inside of its __iter__",
            )
        self.dataset = dataset
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __getitem__(self, index: Any) -> Any:
        with self.seeding(index):
            return self.dataset[index]

    @contextmanager
    def seeding(self, index: Any) -> Iterator[None]:
        """Seed the generators from an index, or from words, for the time of a block; then put them back."""
        numpy = sys.modules["numpy"].random if "numpy" in sys.modules else None
        host = torch.default_generator  # seeding through torch.manual_seed would reach for CUDA, which a worker must not
        found = random.getstate(), host.get_state(), state_of(numpy) if numpy is not None else None
        number = self._number(index)
        try:
            random.seed(number)
            host.manual_seed(number)
            if numpy is not None:
                numpy.seed(number % 2**32)
            yield
        finally:
            random.setstate(found[0])
            host.set_state(found[1])
            if numpy is not None:
                put_state(numpy, found[2])

    # There is no __getitems__, though the data set may have one: samples that are read together would share one seed.

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Give the samples other random numbers, in this process and in workers that are running."""
        self._epoch.fill_(epoch)

    def _number(self, index: Any) -> int:
        """Return a number of 63 bits. Python's hash() is not for this: that of text differs from process to process."""
        try:
            index = operator.index(index)
        except TypeError:
            pass
        words = f"{self.seed} {int(self._epoch)} {index}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1


def seeded_samples_of(dataset: Any) -> Iterator[SeededSamples]:
    """Yield every SeededSamples in a data set: itself, or inside of subsets and concatenations."""
    if isinstance(dataset, SeededSamples):
        yield dataset
    inner = getattr(dataset, "dataset", None)
    several = getattr(dataset, "datasets", None)
    for one in [inner, *(several if isinstance(several, list | tuple) else [])]:
        if one is not None and one is not dataset:
            yield from seeded_samples_of(one)
