"""Resumed iterators: start iterating in the middle of a pass, for each kind of loader.

Loaders with `state_dict` and `load_state_dict` resume by themselves. One of them is torchdata's StatefulDataLoader over an
IterableDataset. Its next iteration continues from the loaded state, even if that state is the end of a pass and the iteration
yields nothing. The code that loads such a state must run this empty iteration first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.positions import END
from hookpoint.core.data.samples import length_of
from hookpoint.parallel.data.distribute_loader import loader_with

Restore = Callable[[], None]

# Keys in the state of a StatefulDataLoader: whether its pass is over and, without workers, whether its dataset has ended.
PASS_IS_OVER = "_iterator_finished"
FETCHER, HAS_ENDED = "fetcher_state", "fetcher_ended"


# DataLoaders over a dataset with an index


class ResumedSampler:
    """Yield a sampler's items after the first `batches`. `begin` restores the generators.

    The sampler is iterated whenever the loader iterates it, as in a pass from the beginning, so that it draws the same numbers.
    A loader with persistent workers iterates it once and draws no seed for the workers. In that case, `begin` is called last,
    to undo the draws made when the workers were created.
    """

    def __init__(self, sampler: Any, batches: int, begin: Restore, had_iterator: bool) -> None:
        self.was_iterated = False
        self.passed_over = batches
        self._sampler = sampler
        self._begin: Restore | None = begin
        self._iterates_once = had_iterator
        self._source: Iterator[Any] = iter(())
        self._save: Callable[[], Restore] | None = None
        self._restore: Restore | None = None
        self._ahead = 0

    def start_later(self, ahead: int, save: Callable[[], Restore]) -> None:
        """Skip items when iteration starts, not before.

        Restore the generators after the `ahead` items that the pass had drawn in advance.
        """
        self._ahead, self._save = ahead, save

    def start(self) -> None:
        """Skip the first items, once."""
        begin, self._begin = self._begin, None  # breaks a cycle: it refers to the loader, which refers to this sampler
        if begin is not None:
            if self._iterates_once:
                begin()
                self._source = iter(self._sampler)
            next(islice(self._source, self.passed_over, self.passed_over), None)

    def __iter__(self) -> ResumedSampler:
        self.was_iterated = True
        if self._save is not None:
            self._restore, self._save = self._save(), None
            if self._begin is not None:
                self._begin()
        if not self._iterates_once:
            self._source = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        self.start()
        if not self._ahead:
            self._end()
        self._ahead -= 1
        try:
            return next(self._source)
        except StopIteration:
            self._end()
            raise

    def __len__(self) -> int:
        return len(self._sampler)

    def _end(self) -> None:
        if self._restore is not None:
            self._restore()
            self._restore = None


def resumed_iterator(
    loader: DataLoader[Any], batches: int, begin: Restore, save: Callable[[], Restore] | None, *, had_iterator: bool
) -> Iterator[Any]:
    """Return an iterator over the batches after the first `batches`. A loader with persistent workers stores this iterator.

    `begin` restores the generators to the beginning of the pass. When this function returns, as many numbers have been drawn as
    in the original pass. A loader with its own __iter__ may create its iterator only for the first batch. In that case, all of
    this happens with the first batch, and the function that `save` returns restores the generators afterwards.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = getattr(loader, name)
    resumed = ResumedSampler(sampler, batches, begin, had_iterator)
    twin = loader_with(loader, **{name: resumed})
    begin()
    iterator: Iterator[Any] = iter(twin)
    if resumed.was_iterated:
        resumed.start()
        if (created := twin.__dict__["_iterator"]) is not None:
            inside = vars(created)
            if inside["_index_sampler"] is resumed:
                inside["_index_sampler"] = sampler
            else:  # the sampler of a HookedLoader, which wraps the loader's own
                inside["_index_sampler"].sampler = sampler
            loader._iterator = created
    elif batches and save is not None:
        resumed.start_later(loader.num_workers * (loader.prefetch_factor or 0), save)
    return iterator


def start_workers(wrapper: Any, restore: Restore) -> None:
    """Start the persistent workers of the loader inside a wrapper, as an earlier pass did, and undo the random draws."""
    for loader in vars(wrapper).values():
        if issubclass(type(loader), DataLoader) and loader._iterator is None:
            iter(loader)
    restore()


# DataLoaders over an IterableDataset


class SkippedSamples(IterableDataset[Any]):
    """A stream that reads and drops its first samples."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset, self._samples = dataset, samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self._samples, None)


def skip_samples(loader: DataLoader[Any], samples: int) -> Iterator[Any]:
    """Return the batches after this many samples, read in this process."""
    return iter(loader_with(loader, dataset=SkippedSamples(loader.dataset, samples)))


def batches_after(loader: DataLoader[Any], samples: int, batch_size: int) -> int | None:
    """Return how many batches follow after this many samples, or None if the dataset has no length."""
    length = length_of(loader.dataset)
    if length is None:
        return None
    left = max(length - samples, 0)
    return left // batch_size if loader.drop_last else -(-left // batch_size)


# Loaders with a state dict


def rest_of_pass(loader: Any, record: Mapping[str, Any], batches: int, begin: Restore) -> Iterator[Any]:
    """Resume in the middle of a pass. `record` contains the loader's state and, if it had one, its state before the pass."""
    is_begin = isinstance(loader, DataLoader) and not batches
    if is_begin and record["own_before"] is not None:
        return next_pass(loader, record["own_before"], begin)
    begin()
    if not is_begin:
        _load(loader, record["own"])
        if not isinstance(loader, DataLoader) and batches >= (length_of(loader) or batches + 1):
            return iter(())  # iterating the loader might begin the next pass
    return iter(loader)


def next_pass(loader: Any, state: Mapping[str, Any], begin: Restore) -> Iterator[Any]:
    """Begin the pass that follows the saved one. `begin` restores the generators for it."""
    if isinstance(loader, DataLoader):
        if loader.num_workers == 0 or loader.persistent_workers:  # other workers start over in each pass
            _load(loader, state)
            iterator = iter(loader)
            if state.get(PASS_IS_OVER):
                next(iterator, None)
        begin()
        return iter(loader)
    _load(loader, state)
    first = next(iterator := iter(loader), END)
    return iter(loader) if first is END else chain([first], iterator)  # the first iteration may only finish the last pass


def _load(loader: Any, state: Mapping[str, Any]) -> None:
    state = own_copy(state)  # the original is kept for the next checkpoint
    if isinstance(loader, DataLoader):  # let the pass end by itself
        state = {**state, PASS_IS_OVER: False}
        if isinstance(state.get(FETCHER), Mapping):
            state[FETCHER] = {**state[FETCHER], HAS_ENDED: False}
    loader.load_state_dict(state)
