"""How a run ends for the code around it: what is raised, and what is dealt with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.errors import StopRun


def is_dealt_with(
    error: BaseException | None, failure: BaseException | None, problems: list[Exception], ending: BaseException | None
) -> bool:
    """Say whether the exception that left the loop's body is dealt with, or raise what the run ends with instead.

    `failure` is what ended the run, `problems` are those of on_run_end, `ending` is that of a signal.
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
    """Call a function, and return what it raised: what follows it has to run all the same."""
    try:
        function(*arguments)
    except Exception as error:
        return [error]
    return []
