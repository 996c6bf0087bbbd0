"""Known loader: what is to be remembered of a loader that passes run over, and what kind of loader it is."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch.utils.data import DataLoader, IterableDataset

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.engine.data import _loader_state
from hookpoint.engine.data._repartition import order_of
from hookpoint.parallel.data.distribute_loader import team_sampler_of


class LoaderRecord:
    """A loader that passes run over: where it stood when it was first seen, and when its last pass began.

    The script may set its order anew for each pass, by seeding a generator or by making another loader. A checkpoint then has
    nothing to say about a pass that is still to come. This is known from the second pass on.
    """

    def __init__(self, loader: Any, reference: weakref.ref[Any], *, trains: bool, is_made_anew: bool) -> None:
        self.reference = reference
        self.trains = trains
        self.had_iterator = False
        self.is_made_anew = is_made_anew
        self._is_seeded_anew = False
        self._first = self.begun = _loader_state.read(loader)
        self._seeds: list[int] | None = None
        self._was_used = False
        self._own_before: Any = None

    def adopt(self, loader: Any, record: Mapping[str, Any]) -> None:
        """Put the loader where it stood when a checkpoint was made between its passes."""
        if not record["is_made_anew"]:
            self._seeds = record["seeds"]
            _loader_state.put_counters(loader, record["now"], record["first"], in_pass=False)
            if not record["is_seeded_anew"]:
                _loader_state.put_generators(loader, record["now"])
            self._load(loader, record)
            self._own_before = record["own"]
        self.is_made_anew, self._is_seeded_anew = record["is_made_anew"], record["is_seeded_anew"]

    def begin(self, loader: Any) -> None:
        """Take note of where the loader stands before a pass."""
        seeds, is_first = _loader_state.seeds(loader), self._seeds is None
        if self._was_used and self.trains and keeps_own_state(loader):  # not before: it might make an iterator for this
            self._own_before = loader.state_dict()
        self._was_used = True
        if not is_first:
            self.is_made_anew, self._is_seeded_anew = False, self._is_seeded_anew or seeds != self._seeds
        self._seeds = seeds
        self.begun = _loader_state.read(loader)
        self.had_iterator = has_iterator(loader) or (not is_first and _keeps_workers(loader))

    def go_on(self, loader: Any, record: Mapping[str, Any]) -> None:
        """Take over what is known of a pass that is gone on with."""
        self._load(loader, record)
        self._keep_order(loader, record)
        # Counters as they are put back: a batch size that the script has changed since is no change of the run.
        self.begun = {**record["begun"], "counters": _loader_state.read(loader)["counters"]}
        self.had_iterator, self._seeds = record["had_iterator"], record["seeds"]
        self._own_before, self._was_used = record["own_before"], True
        self.is_made_anew, self._is_seeded_anew = record["is_made_anew"], record["is_seeded_anew"]

    def _load(self, loader: Any, record: Mapping[str, Any]) -> None:
        if record["dataset"] is not None and _has_state(loader.dataset):
            loader.dataset.load_state_dict(own_copy(record["dataset"]))

    def _keep_order(self, loader: Any, record: Mapping[str, Any]) -> None:
        """Keep the order of a team's pass: one that an earlier release has begun was not drawn from the generators."""
        order, sampler = record.get("order"), team_sampler_of(loader)
        if sampler is not None and order is not None and order["kind"] == "team":
            sampler.load_order(order)

    def state_of(self, loader: Any) -> dict[str, Any]:
        return {
            "trains": self.trains,
            "is_made_anew": self.is_made_anew,
            # What has another seed after a pass than before it seeds itself: the script does not.
            "is_seeded_anew": self._is_seeded_anew and _loader_state.seeds(loader) == self._seeds,
            "seeds": self._seeds,
            "first": self._first,
            "begun": self.begun,
            "now": _loader_state.read(loader),
            "had_iterator": self.had_iterator,
            "ahead": batches_ahead(loader),
            "own_before": self._own_before,
            "own": loader.state_dict() if self.trains and keeps_own_state(loader) else None,
            "dataset": loader.dataset.state_dict() if self.trains and _keeps_state_of_dataset(loader) else None,
            "order": order_of(loader) if self.trains else None,
        }


def _has_state(one: Any) -> bool:
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def has_index(loader: Any) -> TypeGuard[DataLoader[Any]]:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def keeps_own_state(loader: Any) -> bool:
    return _has_state(loader) and not has_index(loader)


def _keeps_state_of_dataset(loader: Any) -> bool:
    return _has_state(loader) and has_index(loader) and not loader.num_workers and _has_state(loader.dataset)


def _keeps_workers(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.persistent_workers


def has_iterator(loader: Any) -> bool:
    return _keeps_workers(loader) and loader._iterator is not None


def batches_ahead(loader: Any) -> int:
    """Return how many batches the sampler is asked for before they are wanted."""
    return loader.num_workers * (loader.prefetch_factor or 0) if isinstance(loader, DataLoader) else 0
