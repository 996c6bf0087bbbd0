"""Loader state: what a loader's order comes from besides the global generators, as plain types and tensors.

That is generators that the loader or its samplers hold, of torch, NumPy or Python, and the samplers' counters: attributes that
are numbers, text or None, such as the epoch that a sampler counts. A sampler's own `state_dict` is not asked for. It tells
where the sampler is in a pass, so that one read at the end of a pass would, put back, make the next pass an empty one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from hookpoint.core.checkpoint.randomness import put_state, state_of

COUNTERS = (bool, int, float, str, type(None))
SAMPLERS = ("batch_sampler", "sampler")


def read(loader: Any) -> dict[str, Any]:
    """Return where the loader's own generators and counters stand, by where they are found."""
    return {
        "generators": {path: _state(generator) for path, generator in _generators(loader).items()},
        "counters": {
            f"{path}.{name}": value
            for path, owner in _owners(loader).items()
            for name, value in vars(owner).items()
            if type(value) in COUNTERS
        },
    }


def put_generators(loader: Any, state: Mapping[str, Any]) -> None:
    """Put the loader's own generators where they stood."""
    for path, generator in _generators(loader).items():
        if path in state["generators"]:
            _put(generator, state["generators"][path])


def put_counters(loader: Any, state: Mapping[str, Any], first: Mapping[str, Any], *, in_pass: bool) -> None:
    """Put the samplers' counters where they stood; `first` is where they stood when the loader was first seen.

    Inside of a pass, those that the run has changed. Before one, those that nobody has touched: others were set on purpose
    for this pass, by `set_epoch` or because the script has changed.
    """
    for path, owner in _owners(loader).items():
        attributes = vars(owner)
        for name, value in list(attributes.items()):
            there = f"{path}.{name}"
            if there in state["counters"] and there in first["counters"]:
                kept, original = state["counters"][there], first["counters"][there]
                if kept != original if in_pass else value == original:
                    attributes[name] = kept


def seeds(loader: Any) -> list[int]:
    """Return what the loader's generators were seeded with; it changes when someone seeds them anew."""
    return [one.initial_seed() for one in _generators(loader).values() if isinstance(one, torch.Generator)]


def _owners(loader: Any) -> dict[str, Any]:
    """Return the samplers of a loader, and those inside of them; a loader that is no DataLoader counts as one itself."""
    found: dict[str, Any] = {}
    if isinstance(loader, DataLoader):
        waiting = [(name, getattr(loader, name, None)) for name in SAMPLERS]
    else:
        waiting = [("loader", loader)]
    while waiting:
        path, one = waiting.pop(0)
        if hasattr(one, "__dict__") and not isinstance(one, type) and all(one is not other for other in found.values()):
            found[path] = one
            waiting.extend((f"{path}.{name}", inner) for name, inner in _inner_samplers(one))
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
    return {path: one for path, one in found.items() if _is_generator(one)}


def _is_generator(one: Any) -> bool:
    kinds: list[type] = [torch.Generator, random.Random]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds += [numpy.Generator, numpy.RandomState]
    return isinstance(one, tuple(kinds)) and not isinstance(one, random.SystemRandom)


def _state(generator: Any) -> Any:
    return generator.get_state() if isinstance(generator, torch.Generator) else state_of(generator)


def _put(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    else:
        put_state(generator, state)
