"""What is going on in this thread or task, for code that is not handed it: the run, and the call of a callback."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

CURRENT: ContextVar[Any] = ContextVar("hookpoint_run", default=None)
# The call of a callback that is being made, in a run of several processes; in one process nobody asks for it.
CURRENT_CALL: ContextVar[Any] = ContextVar("hookpoint_call", default=None)


def log(name: str, value: Any) -> None:
    """Log a value to the run that is going on, as `run.log` does; without a run, do nothing.

    >>> log("attention_entropy", 1.5)
    """
    run = CURRENT.get()
    if run is not None:
        run.log(name, value)
