"""IdleCallback: a callback whose handlers are not called as long as they have nothing to do."""

from __future__ import annotations

from hookpoint.core.callback.callback import Callback


class IdleCallback(Callback):
    """A callback that can be idle at some points. While it is idle, its handlers for these points are not called.

    Each pass calls `is_idle_at` when the pass begins. If the result of `is_idle_at` changes later, call `refresh` on the run's
    loop. The first call to the handlers is then at the end of the current iteration. If `refresh` is called while the handlers
    for the end of an iteration run, the first call is at the end of the next iteration.
    """

    def is_idle_at(self, point: str) -> bool:
        """Return whether the handler for this point would do nothing."""
        return False
