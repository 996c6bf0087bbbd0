"""Loader state: everything that determines the order of a loader's data, except the global random number generators.

The state contains only plain types and tensors. It includes the states of the torch, NumPy and Python random generators in
the loader and its samplers. It also includes the samplers' counters. A counter is an attribute that is a number, a string or
None, such as an epoch. The state does not use a sampler's `state_dict`, which contains the position in a pass: loading a
`state_dict` from the end of a pass would make the next pass empty.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from hookpoint.core.checkpoint.randomness import put_state, state_of
from hookpoint.parallel.data.sampler import TeamBatchSampler

COUNTERS = (bool, int, float, str, type(None))
SAMPLERS = ("batch_sampler", "sampler")


def read(loader: Any) -> dict[str, Any]:
    """Return the state of the loader's generators and counters, keyed by attribute path."""
    return {
        "generators": {
            path: generator.get_state() if isinstance(generator, torch.Generator) else state_of(generator)
            for path, generator in _generators(loader).items()
        },
        "counters": {
            f"{path}.{name}": value
            for path, owner in _owners(loader).items()
            for name, value in vars(owner).items()
            if type(value) in COUNTERS
        },
    }


def put_generators(loader: Any, state: Mapping[str, Any]) -> None:
    """Restore the loader's generators."""
    for path, generator in _generators(loader).items():
        if path in state["generators"]:
            kept = state["generators"][path]
            generator.set_state(kept.cpu()) if isinstance(generator, torch.Generator) else put_state(generator, kept)


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
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds += (numpy.Generator, numpy.RandomState)
    return {path: one for path, one in found.items() if isinstance(one, kinds) and not isinstance(one, random.SystemRandom)}
