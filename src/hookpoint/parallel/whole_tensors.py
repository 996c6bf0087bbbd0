"""Whole tensors: a state without the pieces that the processes of a team have of a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_whole_tensors(state: Any) -> Any:
    """Return the state with each sharded tensor as a whole, on the host. All ranks call this with states of one shape."""
    if hasattr(state, "full_tensor"):  # a DTensor; to import its class takes a second, also where there is none
        return state.full_tensor().cpu()
    if isinstance(state, Mapping):
        found = {key: with_whole_tensors(one) for key, one in state.items()}
        return state if all(found[key] is one for key, one in state.items()) else _like(state, found)
    if type(state) in (list, tuple):
        items = [with_whole_tensors(one) for one in state]
        return state if all(new is old for new, old in zip(items, state, strict=True)) else type(state)(items)
    return state


def _like(given: Any, found: dict[Any, Any]) -> Any:
    """Return the same kind of mapping; a module's state dict also has the versions of its layers."""
    made = type(given)(found)
    if hasattr(given, "_metadata"):
        made._metadata = given._metadata
    return made
