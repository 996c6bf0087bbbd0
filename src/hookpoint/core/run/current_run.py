"""The current run, for code that does not receive it as an argument."""

from __future__ import annotations

from hookpoint.core.callback.current import CURRENT
from hookpoint.core.run.run import Run


def current_run() -> Run | None:
    """Return the current run in this thread or task, or None."""
    run: Run | None = CURRENT.get()
    return run
