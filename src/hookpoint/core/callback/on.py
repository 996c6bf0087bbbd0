"""@on: register a function or method as the handler for a point."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from hookpoint.core.errors import BadArgument, BadSchedule

if TYPE_CHECKING:
    from hookpoint.core.schedule.when import When

Function = TypeVar("Function", bound=Callable[..., Any])
OnError = Literal["raise", "warn", "disable"]
Ranks = Literal["all", "chief", "local_chief"]
MARK = "__hookpoint__"


class Mark(NamedTuple):
    """The arguments of one @on decorator, stored on the decorated function. The hooks compiler reads them."""

    point: str
    when: When | None = None
    on_error: OnError | None = None
    ranks: Ranks | None = None


def on(
    point: str, *, when: When | None = None, on_error: OnError | None = None, ranks: Ranks | None = None
) -> Callable[[Function], Function]:
    """Mark a function as a callback for one point, or a method as a handler. The function itself is unchanged.

    `when` is a schedule. If you pass it, the function runs only when the schedule is due. Stack decorators to handle several
    points. `on_error` and `ranks` apply only to plain functions. A method uses its callback's settings.

    >>> @on("on_epoch_end")
    ... def say(run):
    ...     print(run.epoch)
    """
    if not isinstance(point, str) or not point:
        raise BadArgument(
            f"@on needs the name of one point, got {point!r}.", write='@on("on_epoch_end"), and one @on for each further point'
        )
    mark = Mark(point, checked_schedule(when), on_error, ranks)

    def decorate(function: Function) -> Function:
        if inspect.isclass(function):
            raise BadArgument(f"@on({point!r}) decorates a class, {function.__name__}.", move="it to a method of the class")
        plain = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        setattr(plain, MARK, (*marks(plain), mark))
        return function

    return decorate


def marks(function: Any) -> tuple[Mark, ...]:
    """Return the marks that @on set on a function, innermost first."""
    return tuple(getattr(function, MARK, ()))


def checked_schedule(schedule: When | None) -> When | None:
    """Return the schedule. Raise BadSchedule if it is anything else, such as a function. None means no schedule."""
    if schedule is not None and (isinstance(schedule, type) or not hasattr(schedule, "arm")):
        write = "a schedule such as Every(steps=100), or If(function)"
        raise BadSchedule(f"{schedule!r} is not a schedule.", write=write)
    return schedule
