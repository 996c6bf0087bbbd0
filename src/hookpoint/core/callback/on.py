"""@on: a plain function, or one method, as the handler of a point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from hookpoint.core.schedule.when import When

Function = TypeVar("Function", bound=Callable[..., Any])
OnError = Literal["raise", "warn", "disable"]
Ranks = Literal["all", "chief", "local_chief"]
MARK = "__hookpoint__"


@dataclass(frozen=True, slots=True)
class Mark:
    """What @on writes on a function; the compiler reads it."""

    point: str
    when: When | None = None
    on_error: OnError | None = None
    ranks: Ranks | None = None


def on(
    point: str, *, when: When | None = None, on_error: OnError | None = None, ranks: Ranks | None = None
) -> Callable[[Function], Function]:
    """Mark a function as a callback for one point, or a method as a handler; the function itself stays as it is.

    With `when` it runs only when the schedule says so. Marks may be stacked. `on_error` and `ranks` count for plain
    functions; a method has its callback's.

    >>> @on("on_epoch_end")
    ... def say(run):
    ...     print(run.epoch)
    """
    mark = Mark(point, when, on_error, ranks)

    def decorate(function: Function) -> Function:
        setattr(function, MARK, (*marks(function), mark))
        return function

    return decorate


def marks(function: Any) -> tuple[Mark, ...]:
    """Return the marks that @on left on a function, the innermost first."""
    found: tuple[Mark, ...] = getattr(function, MARK, ())
    return found
