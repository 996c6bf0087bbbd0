"""How a run ends for the surrounding code: what is raised, and what is suppressed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.errors import StopRun


def is_handled(
    error: BaseException | None, failure: BaseException | None, problems: list[Exception], ending: BaseException | None
) -> bool:
    """Return whether to suppress the exception that left the loop's body, or raise the exception that should replace it.

    `failure` ended the run, `problems` are errors in on_run_end, and `ending` is the exception for a signal.
    """
    if failure is not None:
        for problem in problems:
            failure.add_note(f"on_run_end failed too: {type(problem).__name__}: {problem}")
        if failure is not error:
            raise failure
        return False
    if ending is not None:
        for problem in problems:
            ending.add_note(f"on_run_end failed: {type(problem).__name__}: {problem}")
        raise ending
    if problems:
        raise problems[0] if len(problems) == 1 else ExceptionGroup("callbacks failed at on_run_end", problems)
    return isinstance(error, StopRun)


def errors_of(function: Callable[..., object], *arguments: Any) -> list[Exception]:
    """Call a function and return its error, if any, so that the caller can continue."""
    try:
        function(*arguments)
    except Exception as error:
        return [error]
    return []
