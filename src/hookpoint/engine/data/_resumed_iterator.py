"""ResumedIterator: a DataLoader's iterator that begins in the middle of a pass, with nothing of what lies before it read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

PutBack = Callable[[], None]


class ResumedIterator:
    """What a sampler gives behind its first so many items, with the generators put where the pass began, by `begin`.

    The sampler is asked for its iterator whenever the loader asks for one, as in a pass from the beginning: what it draws by
    that, it draws again. But a loader with persistent workers, once it has them, asks once and draws no seed for workers; if
    that was so, `begin` is called last of all, and takes back what making the workers has drawn.
    """

    def __init__(self, sampler: Any, batches: int, begin: PutBack, had_iterator: bool) -> None:
        self.was_asked = False
        self.passed_over = batches
        self._sampler = sampler
        self._left = batches
        self._begin: PutBack | None = begin
        self._asks_once = had_iterator
        self._source: Iterator[Any] = iter(())
        self._hold: Callable[[], PutBack] | None = None
        self._return: PutBack | None = None
        self._ahead = 0

    def be_aside(self, ahead: int, hold: Callable[[], PutBack]) -> None:
        """Get there when asked, aside: when so many items more are given as were drawn ahead, put back what was found."""
        self._ahead, self._hold = ahead, hold

    def start(self) -> None:
        """Pass over the first items, unless that was done."""
        begin, self._begin = self._begin, None  # for it knows the loader, which would know itself by this
        if begin is not None:
            if self._asks_once:
                begin()
                self._source = iter(self._sampler)
            next(islice(self._source, self._left, self._left), None)

    def __iter__(self) -> ResumedIterator:
        self.was_asked = True
        if self._hold is not None:
            self._return, self._hold = self._hold(), None
            if self._begin is not None:
                self._begin()
        if not self._asks_once:
            self._source = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        self.start()
        if not self._ahead:
            self._come_back()
        self._ahead -= 1
        try:
            return next(self._source)
        except StopIteration:
            self._come_back()
            raise

    def __len__(self) -> int:
        return len(self._sampler)

    def _come_back(self) -> None:
        if self._return is not None:
            self._return()
            self._return = None


def resumed_iterator(
    loader: DataLoader[Any], batches: int, begin: PutBack, hold: Callable[[], PutBack] | None, *, had_iterator: bool
) -> Iterator[Any]:
    """Return an iterator over what follows so many batches; the loader goes on with it where its workers are persistent.

    `begin` puts everything that the order comes from to where the pass began; when this returns, as much is drawn as the pass
    had drawn. A loader with an __iter__ of its own may not make its iterator before the first batch is asked for: then it is
    all done at that time, and what stood elsewhere by then is put back, by what `hold` returns.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    behind = ResumedIterator(sampler, batches, begin, had_iterator)
    twin = copy.copy(loader)
    twin.__dict__.update({name: behind, "_iterator": None})  # setting an attribute is refused
    begin()
    iterator = iter(twin)
    if behind.was_asked:
        behind.start()
        if (made := twin.__dict__["_iterator"]) is not None:
            inside = vars(made)
            if inside["_index_sampler"] is behind:
                inside["_index_sampler"] = sampler
            else:  # that of a HookedLoader, which stands around it
                inside["_index_sampler"].sampler = sampler
            loader._iterator = made
    elif batches and hold is not None:
        behind.be_aside(loader.num_workers * (loader.prefetch_factor or 0), hold)
    return iterator
