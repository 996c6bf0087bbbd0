"""HookCall: a function as a hook of torch, which knows where it hangs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class HookCall:
    """Call a function with what torch gives a hook, and with `name=`, the module's or parameter's, where it takes that.

    What the function raises gains a note that says where. In a copy of the model, which another callback may make in the
    middle of a run, or in a model that was saved whole, the hook does nothing.
    """

    __slots__ = ("_function", "_told", "name", "was_called", "where")

    def __init__(self, owner: str, kind: str, name: str, function: Callable[..., Any], given: int) -> None:
        self.name = name
        self.was_called = False
        self._function = function
        self._told = {"name": name} if takes_name(function, given) else {}
        self.where = f"in {owner}, {kind} hook of '{name}'"

    def __call__(self, *given: Any) -> Any:
        self.was_called = True
        try:
            return self._function(*given, **self._told)
        except BaseException as error:
            error.add_note(self.where)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return nothing, (), None


def nothing() -> Callable[..., None]:
    """Return a hook that does nothing."""
    return _do_nothing


def _do_nothing(*given: Any) -> None: ...


def takes_name(function: Callable[..., Any], given: int) -> bool:
    """Say whether a function has a parameter `name` beyond those for what torch gives it.

    >>> takes_name(lambda module, args, output, *, name: None, 3), takes_name(lambda name, args, output: None, 3)
    (True, False)
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin does not tell what it takes
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [one.name for one in parameters if one.kind in by_position][:given]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(one.name == "name" and one.kind in kinds for one in parameters) and "name" not in taken
