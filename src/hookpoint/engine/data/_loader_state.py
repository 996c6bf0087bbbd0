"""Loader state: everything that determines the order of a loader's data, except the global random number generators.

The state contains only plain types and tensors. It includes the states of the torch, NumPy and Python random generators in
the loader, its samplers and, without workers, its dataset. It also includes the samplers' counters. A counter is an attribute
that is a number, a string or None, such as an epoch. The state does not use a sampler's `state_dict`, which contains the
position in a pass: loading a `state_dict` from the end of a pass would make the next pass empty.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from hookpoint.core.checkpoint.randomness import put_state, state_of
from hookpoint.parallel.data.sampler import TeamBatchSampler

COUNTERS = (bool, int, float, str, type(None))
DATASET = "dataset"  # the paths of a dataset's generators begin with this name
SAMPLERS = ("batch_sampler", "sampler")


def read(loader: Any) -> dict[str, Any]:
    """Return the state of the loader's generators and counters, keyed by attribute path."""
    return {
        "generators": {
            path: _state_of(generator) for path, generator in {**_dataset_generators(loader), **_generators(loader)}.items()
        },
        "counters": {
            f"{path}.{name}": value
            for path, owner in _owners(loader).items()
            for name, value in vars(owner).items()
            if type(value) in COUNTERS
        },
    }


def put_generators(loader: Any, state: Mapping[str, Any]) -> None:
    """Restore the generators of the loader and its samplers."""
    _put(_generators(loader), state)


def put_dataset_generators(loader: Any, state: Mapping[str, Any], first: Mapping[str, Any] | None = None) -> None:
    """Restore the dataset's generators. With `first`, restore only those that still have their first state.

    The script has set the others for the next pass.
    """
    kept = None if first is None else first["generators"]
    found = _dataset_generators(loader)
    _put({path: one for path, one in found.items() if kept is None or is_same(_state_of(one), kept.get(path))}, state)


def of_datasets(generators: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states of the generators of datasets only."""
    return {path: state for path, state in generators.items() if path.startswith(DATASET)}


def states_of_datasets(loader: Any) -> dict[str, Any]:
    return {path: _state_of(generator) for path, generator in _dataset_generators(loader).items()}


def put_counters(loader: Any, state: Mapping[str, Any], first: Mapping[str, Any], *, in_pass: bool) -> None:
    """Restore the samplers' counters. `first` is their state when the loader was first used.

    In the middle of a pass, this function restores the counters whose saved values differ from their first values. Before a
    pass, it restores only the counters that still have their first value. The script has set the others for this pass, for
    example with `set_epoch`.
    """
    for path, owner in _owners(loader).items():
        attributes = vars(owner)
        for name, value in list(attributes.items()):
            key = f"{path}.{name}"
            if key in state["counters"] and key in first["counters"]:
                kept, original = state["counters"][key], first["counters"][key]
                if kept != original if in_pass else value == original:
                    attributes[name] = kept


def first_values(values: Mapping[str, Any], now: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, Any]:
    """Return values, with the `first` value of a checkpoint for each value that has not changed since the checkpoint.

    An earlier run of this process has changed such a value, not the script. A new process starts from the first value again.
    """
    return {**values, **{key: first[key] for key in first if is_same(values.get(key), now.get(key))}}


def seeds(loader: Any) -> list[int]:
    """Return the initial seeds of the loader's generators. Reseeding a generator changes its initial seed."""
    return [one.initial_seed() for one in _generators(loader).values() if isinstance(one, torch.Generator)]


def _owners(loader: Any) -> dict[str, Any]:
    """Return a loader's samplers, including nested samplers, keyed by path. A custom loader counts as a sampler itself."""
    found: dict[str, Any] = {}
    is_plain = isinstance(loader, DataLoader)
    queue = [(name, getattr(loader, name, None)) for name in SAMPLERS] if is_plain else [("loader", loader)]
    if is_plain and not issubclass(type(loader), DataLoader):  # a wrapper, which may have counters itself
        queue.append(("loader", loader))
    for path, owner in queue:
        # A TeamBatchSampler stores its own state.
        is_owner = hasattr(owner, "__dict__") and not isinstance(owner, type | TeamBatchSampler)
        if is_owner and all(owner is not other for other in found.values()):
            found[path] = owner
            queue.extend((f"{path}.{name}", inner) for name, inner in _inner_samplers(owner))
    return found


def _inner_samplers(owner: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if isinstance(value, Sampler) or name in SAMPLERS:
            yield name, value
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Sampler):
            yield from ((f"{name}.{number}", inner) for number, inner in enumerate(value))


def _generators(loader: Any) -> dict[str, Any]:
    found = {"generator": getattr(loader, "generator", None)}
    for path, owner in _owners(loader).items():
        for name, value in vars(owner).items():
            if all(value is not other for other in found.values()):
                found[f"{path}.{name}"] = value
    return _only_generators(found)


def _dataset_generators(loader: Any) -> dict[str, Any]:
    owners = datasets(loader)
    return _only_generators({f"{path}.{name}": value for path, one in owners.items() for name, value in _attributes(one)})


def datasets(loader: Any) -> dict[str, Any]:
    """Return the dataset and its nested datasets, keyed by path. With workers, return none.

    Datasets with a `state_dict` restore their generators themselves, so they are left out. The same applies to the datasets of
    loaders with a `state_dict`, if they are iterable.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers:
        return {}
    if isinstance(loader.dataset, IterableDataset) and hasattr(loader, "state_dict"):
        return {}
    found: dict[str, Any] = {}
    queue, seen = [(DATASET, loader.dataset)], set()
    for path, data in queue:
        if id(data) in seen or hasattr(data, "state_dict"):
            continue
        seen.add(id(data))
        found[path] = data
        for name, value in _attributes(data):
            items = value if isinstance(value, list | tuple) and value and isinstance(value[0], Dataset) else [value]
            queue += [(f"{path}.{name}.{number}", item) for number, item in enumerate(items) if isinstance(item, Dataset)]
    return found


def _attributes(data: Any) -> Iterable[tuple[str, Any]]:
    return getattr(data, "__dict__", {}).items()


def _only_generators(found: Mapping[str, Any]) -> dict[str, Any]:
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds += (numpy.Generator, numpy.RandomState)
    return {path: one for path, one in found.items() if isinstance(one, kinds) and not isinstance(one, random.SystemRandom)}


def _state_of(generator: Any) -> Any:
    return generator.get_state() if isinstance(generator, torch.Generator) else state_of(generator)


def _put(generators: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for path, generator in generators.items():
        if path in state["generators"]:
            kept = state["generators"][path]
            generator.set_state(kept.cpu()) if isinstance(generator, torch.Generator) else put_state(generator, kept)


def is_same(state: Any, other: Any) -> bool:
    """Return whether two states of a generator are equal. If one of them is None, they are not."""
    if isinstance(state, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(state.cpu(), other.cpu())
    return state is not None and type(state) is type(other) and bool(state == other)
