"""Resumed iterators: start iterating in the middle of a pass, for each kind of loader.

Loaders with `state_dict` and `load_state_dict`, such as torchdata's StatefulDataLoader over an IterableDataset, restore their
position themselves. The next iteration of a StatefulDataLoader continues from the loaded state. If this state is the end of a
pass, the next iteration yields nothing. The functions below run this empty iteration before they begin the next pass.
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

# Keys in the state of a StatefulDataLoader. They tell whether its pass is over and, without workers, whether its dataset has
# ended.
PASS_IS_OVER = "_iterator_finished"
FETCHER, HAS_ENDED = "fetcher_state", "fetcher_ended"


# DataLoaders over map-style datasets


class ResumedSampler:
    """Yield a sampler's items except the first `batches` items. `begin` resets the random generators to the start of the pass.

    This class iterates over the sampler as often as the loader does in a normal pass, so that the sampler draws the same random
    numbers. A loader with persistent workers iterates over its sampler once per pass and draws no new seed for the workers. In
    that case, `begin` is called last, to undo the draws made when the workers were created.
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
        """Postpone skipping the first items until the iteration over the sampler starts.

        `save` is called before the items are skipped. It saves the state of the random generators and returns a function that
        restores this state. This function is called after the sampler has yielded `ahead` more items, which is the number of
        items that the original pass had prefetched.
        """
        self._ahead, self._save = ahead, save

    def start(self) -> None:
        """Skip the first items. Later calls do nothing."""
        begin, self._begin = self._begin, None  # breaks a reference cycle: begin → loader → this sampler
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
    """Return an iterator that skips the first `batches` batches. A loader with persistent workers stores this iterator.

    `begin` resets the generators to the beginning of the pass. When this function returns, the generators have drawn as many
    numbers as in the original pass. A loader with a custom __iter__ may create its iterator only when the first batch is
    requested. In that case, the batches are skipped at that time. `save` then saves the generators' state before the skip and
    returns a function that restores it.
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
            else:  # the sampler of a HookedLoader wraps the loader's own sampler
                inside["_index_sampler"].sampler = sampler
            loader._iterator = created
    elif batches and save is not None:
        resumed.start_later(loader.num_workers * (loader.prefetch_factor or 0), save)
    return iterator


def start_workers(wrapper: Any, restore: Restore) -> None:
    """Start the persistent workers of each DataLoader that is an attribute of `wrapper`.

    For example, `wrapper` is a loader that Accelerate has prepared. The original run started these workers in an earlier pass.
    Starting the workers draws random numbers. Afterwards, `restore` resets the random generators.
    """
    for loader in vars(wrapper).values():
        if issubclass(type(loader), DataLoader) and loader._iterator is None:
            iter(loader)
    restore()


# DataLoaders over iterable datasets


class SkippedSamples(IterableDataset[Any]):
    """An iterable dataset that reads and discards its first samples."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset, self._samples = dataset, samples

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.dataset), self._samples, None)


def skip_samples(loader: DataLoader[Any], samples: int) -> Iterator[Any]:
    """Return an iterator over the batches after the first `samples` samples. This process reads and discards these samples."""
    return iter(loader_with(loader, dataset=SkippedSamples(loader.dataset, samples)))


def batches_after(loader: DataLoader[Any], samples: int, batch_size: int) -> int | None:
    """Return the number of batches after the first `samples` samples, or None if the dataset has no length."""
    length = length_of(loader.dataset)
    if length is None:
        return None
    left = max(length - samples, 0)
    return left // batch_size if loader.drop_last else -(-left // batch_size)


# Loaders with a state dict


def rest_of_pass(loader: Any, record: Mapping[str, Any], batches: int, begin: Restore) -> Iterator[Any]:
    """Return an iterator over the remaining batches of a pass, for a loader that restores its position from a state dict.

    `record` contains the loader's state and, if the loader was used before, its state at the beginning of the pass.
    """
    is_begin = isinstance(loader, DataLoader) and not batches
    if is_begin and record["own_before"] is not None:
        return next_pass(loader, record["own_before"], begin)
    begin()
    if not is_begin:
        _load(loader, record["own"])
        if not isinstance(loader, DataLoader) and batches >= (length_of(loader) or batches + 1):
            return iter(())  # iterating over the loader might begin the next pass
    return iter(loader)


def next_pass(loader: Any, state: Mapping[str, Any], begin: Restore) -> Iterator[Any]:
    """Begin the pass that follows the saved pass. `begin` sets the generators for the new pass."""
    if isinstance(loader, DataLoader):
        if loader.num_workers == 0 or loader.persistent_workers:  # workers that are not persistent start over in each pass
            _load(loader, state)
            iterator = iter(loader)
            if state.get(PASS_IS_OVER):
                next(iterator, None)
        begin()
        return iter(loader)
    _load(loader, state)
    first = next(iterator := iter(loader), END)
    # If the first iteration yields nothing, it has only finished the saved pass. The second iteration is then the new pass.
    return iter(loader) if first is END else chain([first], iterator)


def _load(loader: Any, state: Mapping[str, Any]) -> None:
    state = own_copy(state)  # a copy, because the next checkpoint needs the state unmodified
    if isinstance(loader, DataLoader):  # mark the pass as unfinished; it then ends normally
        state = {**state, PASS_IS_OVER: False}
        if isinstance(state.get(FETCHER), Mapping):
            state[FETCHER] = {**state[FETCHER], HAS_ENDED: False}
    loader.load_state_dict(state)
