"""ShardedPlaceholder: a placeholder for a tensor whose shards are stored in separate files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardedPlaceholder:
    """A placeholder for a sharded tensor. `name` identifies the tensor in the files that the ranks wrote.

    When a run resumes, the store replaces the placeholder with the tensor, sharded as the resuming rank needs it.
    """

    name: str


def has_placeholder(state: Any) -> bool:
    """Return whether a state contains a placeholder."""
    if isinstance(state, Mapping):
        return any(map(has_placeholder, state.values()))
    if isinstance(state, list | tuple):
        # Skip lists of integers, such as a generator's state: they can be long and contain no placeholder.
        return set(map(type, state)) != {int} and any(map(has_placeholder, state))
    return isinstance(state, ShardedPlaceholder)
