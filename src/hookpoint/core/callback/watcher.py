"""Watcher: a callback that sees the calls of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.run_view import Dispatch

Function = Callable[..., Any]


class Watcher(Callback):
    """See every handler that is called, and every point that is fired; for tracing and measuring.

    It is asked when functions are made ready, before the run has begun, and what it returns is called in their place for the
    whole run. Without a watcher in the list everything is as if there were no such thing.
    """

    def around_call(self, name: str, point: str, function: Function) -> Function:
        """Return what is called in place of a handler of the callback of this name; for a monitor, on its own thread."""
        return function

    def around_points(self, points: tuple[str, ...], dispatch: Dispatch | None) -> Dispatch | None:
        """Return what is called where these points are fired; None came if nobody listens, and may go back."""
        return dispatch

    def leave(self) -> None:
        """End: the run is over, whatever ended it, and every handler has been called. It may not have begun."""
