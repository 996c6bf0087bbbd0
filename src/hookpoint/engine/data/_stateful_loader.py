"""Own state: loaders that find back into their data by themselves, with `state_dict` and `load_state_dict`.

Among them is torchdata's StatefulDataLoader over an IterableDataset. Such a data set goes on from a state that was loaded when
it is iterated over the next time, be it at the end of a pass: the one who loads it has to get that end over with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.positions import END
from hookpoint.core.data.samples import length_of

# In the state of a StatefulDataLoader: whether its pass is over, and whether its data set has ended, without workers.
PASS_IS_OVER = "_iterator_finished"
FETCHER, HAS_ENDED = "fetcher_state", "fetcher_ended"


def rest_of_pass(
    loader: Any, own: Mapping[str, Any], own_before: Mapping[str, Any] | None, batches: int, begin: Callable[[], None]
) -> Iterator[Any]:
    """Go on in the middle of a pass. `own_before` is the state before the pass, where there was one before it."""
    if isinstance(loader, DataLoader) and not batches and own_before is not None:
        return next_pass(loader, own_before, begin)
    begin()
    if isinstance(loader, DataLoader) and not batches:
        return iter(loader)
    _load(loader, own)
    if not isinstance(loader, DataLoader) and batches >= (length_of(loader) or batches + 1):
        return iter(())  # it might begin the next pass
    return iter(loader)


def next_pass(loader: Any, own: Mapping[str, Any], begin: Callable[[], None]) -> Iterator[Any]:
    """Begin the pass that follows the one after which the state was read; `begin` puts the generators where it begins."""
    if isinstance(loader, DataLoader):
        if loader.num_workers == 0 or loader.persistent_workers:  # otherwise each pass has new workers, and a new data set
            _load(loader, own)
            iterator = iter(loader)
            if own.get(PASS_IS_OVER):
                next(iterator, None)
        begin()
        return iter(loader)
    _load(loader, own)
    first = next(iterator := iter(loader), END)
    return iter(loader) if first is END else chain([first], iterator)  # the first one may have been the end of the last pass


def _load(loader: Any, own: Mapping[str, Any]) -> None:
    own = own_copy(own)  # it is kept for the next checkpoint, whatever the loader does with its own
    if isinstance(loader, DataLoader):  # have it come to an end by itself
        own = {**own, PASS_IS_OVER: False}
        if isinstance(own.get(FETCHER), Mapping):
            own[FETCHER] = {**own[FETCHER], HAS_ENDED: False}
    loader.load_state_dict(own)
