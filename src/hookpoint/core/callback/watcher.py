"""Watcher: a callback that observes the calls of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.run_view import Dispatch

Function = Callable[..., Any]


class Watcher(Callback):
    """Observe every handler call and every fired point, for tracing and profiling.

    A watcher wraps functions once, before the run begins, and its wrappers are called for the whole run. A run without a
    watcher has no overhead.
    """

    def around_call(self, name: str, point: str, function: Function) -> Function:
        """Return the function to call in place of a handler of the named callback; a monitor's runs on its own thread."""
        return function

    def around_points(self, points: tuple[str, ...], dispatch: Dispatch | None) -> Dispatch | None:
        """Return the function to call when these points fire; `dispatch` is None if there is no handler, and may stay so."""
        return dispatch

    def leave(self) -> None:
        """Clean up after the run, even one that failed to begin; every handler has been called."""
