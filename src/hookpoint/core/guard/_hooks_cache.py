"""Compiled: hooks for whatever a guard was given as callbacks, made once and kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.hooks.hooks import Hooks

KEPT = "_hookpoint_compiled"
MOST = 8


def compiled(callbacks: Any) -> Hooks:
    """Return hooks for one callback, several, a pipeline, or hooks themselves.

    They are kept with the first callback, so that they live as long as it does and no longer.
    """
    if isinstance(callbacks, Hooks):
        return callbacks
    several = not isinstance(callbacks, Callback) and isinstance(callbacks, Iterable)
    given = tuple(callbacks) if several else (callbacks,)
    keeper = getattr(given[0], "__dict__", None) if given else None
    if not isinstance(keeper, dict):
        return Hooks(given)
    kept: dict[tuple[int, ...], Hooks] = keeper.setdefault(KEPT, {})
    key = tuple(map(id, given))
    hooks = kept.get(key)
    if hooks is None:
        if len(kept) >= MOST:
            kept.clear()
        hooks = kept[key] = Hooks(given)
    return hooks
