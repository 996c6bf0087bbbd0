"""Fingerprint: a digest of the names, shapes and types of a model's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hookpoint.core.checkpoint.plain_names import COMPILED, WRAPPED, plain_state
from hookpoint.core.checkpoint.sharded_placeholder import has_placeholder
from hookpoint.storage.checkpoint.tree import is_tensor

MAX_LISTED = 8


class Fingerprint(str):
    """A digest of a model's tensors. `tensors` maps each tensor's name to its shape and type, and is not saved in files."""

    tensors: Mapping[str, str]

    @classmethod
    def of(cls, state: Any) -> Fingerprint:
        """Compute the fingerprint of one or more models from their state dicts."""
        tensors = _tensors("", state)
        lines = sorted(f"{name} {kind}" for name, kind in tensors.items())
        fingerprint = cls(hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16])
        fingerprint.tensors = tensors
        return fingerprint


def differences(state: Any, now: Mapping[str, str]) -> list[str]:
    """Describe up to eight differences between saved and current tensors, one line per tensor."""
    saved = _tensors("", plain_state(state) if isinstance(state, Mapping) else state)
    lines = [
        f"{name.removeprefix('/')}: {saved.get(name, 'missing')} when saved, {now.get(name, 'missing')} now"
        for name in {**saved, **now}
        if saved.get(name) != now.get(name)
    ]
    more = len(lines) - MAX_LISTED
    return [*lines[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])]


def fits(state: Any, wanted: Any) -> bool:
    """Return whether the saved state of a compiled model matches a fingerprint, ignoring prefixes that wrappers add to names.

    Older releases saved the names of a compiled model with the prefixes that torch.compile adds. The shapes of sharded
    tensors are unknown at this point, so these tensors are checked when they are loaded.
    """
    if not any(COMPILED in name for name in _names(state)):
        return False
    plain = plain_state(state)
    unwrapped = {name.removeprefix(WRAPPED): tensor for name, tensor in plain.items()}
    return has_placeholder(state) or wanted in (Fingerprint.of(plain), Fingerprint.of(unwrapped))


def _names(state: Any) -> list[str]:
    if not isinstance(state, Mapping):
        return []
    return [str(name) for name in state] + [name for value in state.values() for name in _names(value)]


def _tensors(prefix: str, state: Any) -> dict[str, str]:
    """Return the shape and type of each tensor in a state, keyed by name."""
    if isinstance(state, Mapping):
        return {name: kind for key, value in state.items() for name, kind in _tensors(f"{prefix}/{key}", value).items()}
    return {prefix: f"{tuple(state.shape)} {state.dtype}"} if is_tensor(state) else {}
