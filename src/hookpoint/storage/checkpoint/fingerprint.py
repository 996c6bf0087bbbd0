"""Fingerprint: a digest of the names, shapes and types of a model's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hookpoint.core.checkpoint.plain_names import COMPILED, WRAPPED, plain_state
from hookpoint.core.checkpoint.sharded_placeholder import has_elsewhere
from hookpoint.storage.checkpoint.tree import is_tensor


def fingerprint(state: Any) -> str:
    """Return the digest of a model's state dict, or of those of several models."""
    lines = sorted(_tensors("", state))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def fits(state: Any, wanted: Any) -> bool:
    """Say whether a state of an older release, with the names of a compiled model, has this fingerprint once they are plain.

    Tensors that are in files of their own have no shape here: loading them finds out.
    """
    if not any(COMPILED in name for name in _names(state)):
        return False
    plain = plain_state(state)
    without = {name.removeprefix(WRAPPED): one for name, one in plain.items()}
    return has_elsewhere(state) or wanted in (fingerprint(plain), fingerprint(without))


def _names(state: Any) -> list[str]:
    if not isinstance(state, Mapping):
        return []
    return [str(name) for name in state] + [name for one in state.values() for name in _names(one)]


def _tensors(prefix: str, state: Any) -> list[str]:
    if isinstance(state, Mapping):
        return [line for key, value in state.items() for line in _tensors(f"{prefix}/{key}", value)]
    return [f"{prefix} {tuple(state.shape)} {state.dtype}"] if is_tensor(state) else []
