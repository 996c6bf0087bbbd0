"""ShardedPlaceholder: what a state has of a tensor that is in files of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardedPlaceholder:
    """Stand for a tensor of which each process has a part: its name in the files that all of them have written.

    A store puts the tensor in its place when it is known how it is to lie on the process that goes on.
    """

    name: str


def has_placeholder(state: Any) -> bool:
    """Say whether a tensor of a state is elsewhere."""
    if isinstance(state, Mapping):
        return any(map(has_placeholder, state.values()))
    if isinstance(state, list | tuple):
        return any(map(has_placeholder, state))
    return isinstance(state, ShardedPlaceholder)
