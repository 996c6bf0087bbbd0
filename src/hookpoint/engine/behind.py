"""Behind: a DataLoader's iterator that begins in the middle of a pass, with nothing of what lies before it read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader

END = object()


class Behind:
    """What a sampler gives behind its first so many items.

    The sampler is asked for its iterator whenever the loader asks for one, as in a pass from the beginning: what it draws by
    that, it draws again. With `begin`, the pass was one of a loader with persistent workers, which asks once and draws no seed
    for workers; `begin` is then called last before that, and takes back what making the workers has drawn.
    """

    def __init__(self, sampler: Any, batches: int, begin: Callable[[], None] | None) -> None:
        self.was_asked = False
        self._sampler = sampler
        self._left = batches
        self._begin = begin
        self._source: Iterator[Any] = iter(())

    def __iter__(self) -> Behind:
        self.was_asked = True
        if self._begin is None:
            self._source = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        self.start()
        return next(self._source)

    def __len__(self) -> int:
        return len(self._sampler)

    def start(self) -> None:
        """Pass over the first items, unless that was done."""
        if self._begin is not None:
            begin, self._begin = self._begin, None
            begin()
            self._source = iter(self._sampler)
        left, self._left = self._left, 0
        next(islice(self._source, left, left), None)


def iterator_behind(loader: DataLoader[Any], batches: int, begin: Callable[[], None], had_iterator: bool) -> Iterator[Any]:
    """Return an iterator over what follows so many batches; the loader goes on with it where its workers are persistent.

    `begin` puts everything that the order comes from to where the pass began. Its random numbers are drawn before this
    returns, as far as the pass had drawn them.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    behind = Behind(sampler, batches, begin if had_iterator else None)
    twin = copy.copy(loader)
    twin.__dict__.update({name: behind, "_iterator": None})  # setting an attribute is refused
    begin()
    iterator: Iterator[Any] = iter(twin)
    if behind.was_asked:
        behind.start()
    else:  # a class with an __iter__ of its own, which makes the iterator when it is asked for the first batch
        first = next(iterator, END)
        iterator = iter(()) if first is END else chain([first], iterator)
    made = twin.__dict__["_iterator"]
    if made is not None:
        made._index_sampler = sampler
        loader._iterator = made
    return iterator
