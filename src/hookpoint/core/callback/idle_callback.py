"""IdleCallback: a callback that has nothing to do at some points until something is registered."""

from __future__ import annotations

from hookpoint.core.callback.callback import Callback


class IdleCallback(Callback):
    """A callback whose handlers a pass may leave out, so that they cost nothing while the callback is idle.

    A pass calls `is_idle_at` when it begins. If the result changes later, call `refresh` on the run's loop. The handlers are
    then called from the end of the current iteration on. If this happens while an iteration ends, they are called from the end
    of the next iteration on.
    """

    def is_idle_at(self, point: str) -> bool:
        """Return whether the handler for this point would do nothing."""
        return False
