"""Default callbacks, which a loop adds to the user's list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hookpoint.core.callback.callback import Callback


def with_defaults(callbacks: Any, *groups: tuple[Iterable[Any] | None, tuple[type[Any], ...]]) -> list[Any]:
    """Return the user's callbacks, followed by each group of defaults.

    Each group is a pair. The first item contains the callbacks that the user chose for this group, or is None. The second item
    contains the default classes. If the first item is None, one instance of each default class is added, except for classes
    that already have an instance in the user's list. The user's list is not modified.
    """
    own = _listed(callbacks)
    present = [type(callback) for callback in _flattened(own)]
    for chosen, defaults in groups:
        own += [default() for default in defaults if default not in present] if chosen is None else _listed(chosen)
    return own


def _listed(callbacks: Any) -> list[Any]:
    """Return a list of callbacks. A single callback becomes a list with one item."""
    is_one = isinstance(callbacks, Callback | str | Mapping) or not isinstance(callbacks, Iterable)
    return [callbacks] if is_one else list(callbacks)


def _flattened(callbacks: Iterable[Any]) -> Iterator[Any]:
    """Yield the callbacks. If a callback has a method `get_pipeline`, yield the callbacks that this method returns instead."""
    for callback in callbacks:
        inside = getattr(callback, "get_pipeline", None) if isinstance(callback, Callback) else None
        if callable(inside):
            yield from _flattened(inside())
        else:
            yield callback
