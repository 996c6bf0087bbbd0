"""ShardedPlaceholder: the placeholder for a tensor that is stored in separate files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardedPlaceholder:
    """A placeholder with the name of a sharded tensor in the files that all ranks have written.

    A store replaces it with the tensor once its layout on the resuming rank is known.
    """

    name: str


def has_placeholder(state: Any) -> bool:
    """Return whether a state contains a placeholder."""
    if isinstance(state, Mapping):
        return any(map(has_placeholder, state.values()))
    if isinstance(state, list | tuple):
        # A list of integers, such as the state of a generator, may be long; it contains no placeholder.
        return set(map(type, state)) != {int} and any(map(has_placeholder, state))
    return isinstance(state, ShardedPlaceholder)
