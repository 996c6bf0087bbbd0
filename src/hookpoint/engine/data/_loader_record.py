"""LoaderRecord: the state that a run records about a loader, and functions that determine the kind of a loader."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, TypeGuard

from torch.utils.data import DataLoader, IterableDataset

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.engine.data import _loader_state
from hookpoint.engine.data._dataset_record import DatasetRecord
from hookpoint.engine.data._repartition import order_of
from hookpoint.parallel.data.distribute_loader import team_sampler_of


class LoaderRecord:
    """The state of a loader at its first use and at the beginning of its last pass.

    The user's script may determine the order of each pass itself, by seeding a generator or by creating a new loader. In that
    case, the order stored in a checkpoint does not apply to later passes. The run detects this from the second pass on.

    `before` is the record of the loader that this loader replaces, or None.
    """

    def __init__(self, loader: Any, reference: weakref.ref[Any], *, trains: bool, before: LoaderRecord | None) -> None:
        self.reference = reference
        self.trains = trains
        self.had_iterator = False
        self.is_made_anew, self._is_seeded_anew = before is not None, False
        self._first = self.begun = _loader_state.read(loader)
        self._seeds: list[int] | None = None
        self._was_used = False
        self._own_before: Any = None
        self.datasets: DatasetRecord = DatasetRecord(loader, None if before is None else before.datasets)

    def load(self, loader: Any, record: Mapping[str, Any]) -> None:
        """Restore the loader from a checkpoint that was saved between two passes."""
        if not record["is_made_anew"]:
            self._seeds = record["seeds"]
            _loader_state.put_counters(loader, record["now"], record["first"], in_pass=False)
            self._keep_first(record)
            if not record["is_seeded_anew"]:
                _loader_state.put_generators(loader, record["now"])
            _load_dataset(loader, record)
            self._own_before = record["own"]
        _loader_state.put_dataset_generators(loader, record["now"], record["first"])
        self.datasets.load(record)
        self.is_made_anew, self._is_seeded_anew = record["is_made_anew"], record["is_seeded_anew"]

    def begin(self, loader: Any) -> None:
        """Record the state of the loader before a pass."""
        seeds, is_first = _loader_state.seeds(loader), self._seeds is None
        if self._was_used and self.trains and is_stateful(loader):  # before first use, state_dict might create an iterator
            self._own_before = loader.state_dict()
        self._was_used = True
        if not is_first:
            self.is_made_anew, self._is_seeded_anew = False, self._is_seeded_anew or seeds != self._seeds
        self._seeds = seeds
        self.begun = _loader_state.read(loader)
        self.datasets.begin(loader)
        self.had_iterator = has_iterator(loader) or (not is_first and _keeps_workers(loader))

    def resume(self, loader: Any, record: Mapping[str, Any]) -> None:
        """Restore the loader from a checkpoint that was saved in the middle of a pass."""
        _load_dataset(loader, record)
        order, sampler = record.get("order"), team_sampler_of(loader)
        if sampler is not None and order is not None and order["kind"] == "team":
            sampler.load_order(order)  # in checkpoints from earlier releases, the order does not come from the generators.
        # Record the current counters, not those in the checkpoint. If the script now uses another batch size, the old size in
        # the checkpoint would look like a change that the run made.
        self.begun = {**record["begun"], "counters": _loader_state.read(loader)["counters"]}
        self._keep_first(record)
        self.datasets.load(record, in_pass=True)
        self.had_iterator, self._seeds = record["had_iterator"], record["seeds"]
        self._own_before, self._was_used = record["own_before"], True
        self.is_made_anew, self._is_seeded_anew = record["is_made_anew"], record["is_seeded_anew"]

    def _keep_first(self, record: Mapping[str, Any]) -> None:
        """Take over the first values of the counters from a checkpoint, if an earlier run of this process saved it."""
        kept = _loader_state.first_values(*(one["counters"] for one in (self._first, record["now"], record["first"])))
        self._first = {**self._first, "counters": kept}

    def state_of(self, loader: Any) -> dict[str, Any]:
        has_dataset_state = _has_state(loader) and has_index(loader) and not loader.num_workers and _has_state(loader.dataset)
        return {
            "trains": self.trains,
            "is_made_anew": self.is_made_anew,
            # If a seed changes during a pass, the loader itself has reseeded its generator. The script has not reseeded it.
            "is_seeded_anew": self._is_seeded_anew and _loader_state.seeds(loader) == self._seeds,
            "seeds": self._seeds,
            "first": self.datasets.put_first(self._first),
            "begun": self.begun,
            "now": _loader_state.read(loader),
            "had_iterator": self.had_iterator,
            "ahead": batches_ahead(loader),
            "own_before": self._own_before,
            "own": loader.state_dict() if self.trains and is_stateful(loader) else None,
            "dataset": loader.dataset.state_dict() if self.trains and has_dataset_state else None,
            "order": order_of(loader) if self.trains else None,
        }


def _load_dataset(loader: Any, record: Mapping[str, Any]) -> None:
    if record["dataset"] is not None and _has_state(loader.dataset):
        loader.dataset.load_state_dict(own_copy(record["dataset"]))


def _has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def is_wrapper(loader: Any) -> bool:
    """Return whether a loader wraps a DataLoader, and passes isinstance checks although its class is not a DataLoader class.

    An example is a loader that Accelerate has prepared.

    A wrapper has the attributes of the wrapped DataLoader. A copy of the wrapper would still read the wrapped DataLoader from
    the beginning.
    """
    return isinstance(loader, DataLoader) and not issubclass(type(loader), DataLoader)


def has_index(loader: Any) -> TypeGuard[DataLoader[Any]]:
    is_plain = isinstance(loader, DataLoader) and not is_wrapper(loader)
    return is_plain and not isinstance(loader.dataset, IterableDataset)


def is_stateful(loader: Any) -> bool:
    """Return whether a loader resumes by itself, with its own state dict."""
    return _has_state(loader) and not has_index(loader) and not is_wrapper(loader)  # a wrapper's state may be incomplete


def _keeps_workers(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.num_workers > 0 and loader.persistent_workers


def has_iterator(loader: Any) -> bool:
    return _keeps_workers(loader) and loader._iterator is not None


def batches_ahead(loader: Any) -> int:
    """Return the number of batches that the workers prefetch."""
    return loader.num_workers * (loader.prefetch_factor or 0) if isinstance(loader, DataLoader) else 0
