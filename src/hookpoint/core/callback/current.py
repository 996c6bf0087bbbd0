"""The current run and the current handler call, in this thread or task."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

CURRENT: ContextVar[Any] = ContextVar("hookpoint_run", default=None)
OPEN_RUNS: ContextVar[tuple[Any, ...]] = ContextVar("hookpoint_open_runs", default=())  # the newest run is last
# CURRENT_CALL contains the handler call that is in progress. Only runs with multiple ranks set this variable.
CURRENT_CALL: ContextVar[Any] = ContextVar("hookpoint_call", default=None)


def is_on_all_ranks() -> bool:
    """Return whether the handler that is being called runs on all ranks. True outside a handler."""
    call = CURRENT_CALL.get()
    return call is None or call.entry.ranks == "all"


def enter_run(run: Any) -> None:
    """Open a run and make it the current one."""
    OPEN_RUNS.set((*OPEN_RUNS.get(), run))
    CURRENT.set(run)


def leave_run(run: Any) -> None:
    """Close a run. The most recently opened run that is still open becomes the current run. Runs may end in any order."""
    still_open = tuple(other for other in OPEN_RUNS.get() if other is not run)
    OPEN_RUNS.set(still_open)
    CURRENT.set(still_open[-1] if still_open else None)


def log(name: str, value: Any) -> None:
    """Log a value to the current run, as `run.log` does. Do nothing if no run is active.

    >>> log("attention_entropy", 1.5)
    """
    run = CURRENT.get()
    if run is not None:
        run.log(name, value)
