"""The run that is going on in this thread or task, for code that is not handed it: a model's forward, a guarded function."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

CURRENT: ContextVar[Run | None] = ContextVar("hookpoint_run", default=None)


def current_run() -> Run | None:
    """Return the run that is going on, or None."""
    return CURRENT.get()


def log(name: str, value: Any) -> None:
    """Log a value to the run that is going on, as `run.log` does; without a run, do nothing.

    >>> log("attention_entropy", 1.5)
    """
    run = CURRENT.get()
    if run is not None:
        run.log(name, value)
