"""Defaults: callbacks that a loop adds to the user's list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hookpoint.core.callback.callback import Callback


def with_defaults(callbacks: Any, *groups: tuple[Iterable[Any] | None, tuple[type[Any], ...]]) -> list[Any]:
    """Return the user's callbacks, then each group: the user's choice for it, or one callback of each default class for None.

    A default is left out if the user's list has one of its class. The user's list is not changed.
    """
    own = list(callbacks) if isinstance(callbacks, Iterable) and not isinstance(callbacks, Callback) else [callbacks]
    present = [type(callback) for callback in _flattened(own)]
    for chosen, defaults in groups:
        own += [default() for default in defaults if default not in present] if chosen is None else chosen
    return own


def _flattened(callbacks: Iterable[Any]) -> Iterator[Any]:
    """Yield the callbacks, and those inside pipelines instead of the pipelines."""
    for callback in callbacks:
        inside = getattr(callback, "get_pipeline", None) if isinstance(callback, Callback) else None
        if callable(inside):
            yield from _flattened(inside())
        else:
            yield callback
