"""The run that is going on, for code that is not handed it."""

from __future__ import annotations

from hookpoint.core.callback.current import CURRENT
from hookpoint.core.run.run import Run


def current_run() -> Run | None:
    """Return the run that is going on in this thread or task, or None."""
    run: Run | None = CURRENT.get()
    return run
