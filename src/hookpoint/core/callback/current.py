"""The current run, and the current call of a callback, in this thread or task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

CURRENT: ContextVar[Any] = ContextVar("hookpoint_run", default=None)
# The handler call in progress, in a run of multiple ranks. Not set in a run of one process.
CURRENT_CALL: ContextVar[Any] = ContextVar("hookpoint_call", default=None)


def log(name: str, value: Any) -> None:
    """Log a value to the current run, as `run.log` does; without a run, do nothing.

    >>> log("attention_entropy", 1.5)
    """
    run = CURRENT.get()
    if run is not None:
        run.log(name, value)
