"""Watcher: a callback that observes all calls to other callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.run_view import Dispatch

Function = Callable[..., Any]


class Watcher(Callback):
    """Observe every handler call and every fired point, for tracing and profiling.

    A watcher wraps each function once, before the run begins. The run then calls the wrappers. A run without a watcher has no
    overhead.
    """

    def around_call(self, name: str, point: str, function: Function) -> Function:
        """Return the function to call instead of the named callback's handler. Monitors' handlers run on other threads."""
        return function

    def around_points(self, points: tuple[str, ...], dispatch: Dispatch | None) -> Dispatch | None:
        """Return the function to call when these points fire, instead of `dispatch`.

        `dispatch` calls the handlers. It is None if no callback handles these points.
        """
        return dispatch

    def leave(self) -> None:
        """Release resources. Called after the run's last handler has returned, even if the run failed to begin."""
