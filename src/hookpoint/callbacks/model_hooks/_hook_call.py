"""HookCall: a function as a torch hook that knows its module or parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


class HookCall:
    """Call a function with the arguments of a torch hook, plus `name=` if it has such a parameter.

    Exceptions get a note with the place. In a copy of the model, as another callback may make, or in a model that is pickled,
    the hook does nothing.
    """

    __slots__ = ("_function", "_options", "name", "was_called", "where")

    def __init__(self, owner: str, kind: str, name: str, function: Callable[..., Any], arguments: int) -> None:
        self.name = name
        self.was_called = False
        self._function = function
        self._options = {"name": name} if takes_name(function, arguments) else {}
        self.where = f"in {owner}, {kind} hook of '{name}'"

    def __call__(self, *args: Any) -> Any:
        self.was_called = True
        try:
            return self._function(*args, **self._options)
        except BaseException as error:
            error.add_note(self.where)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_do_nothing,)


def _do_nothing(*args: Any) -> None: ...


def takes_name(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function has a parameter `name` after those for the arguments of torch.

    >>> takes_name(lambda module, args, output, *, name: None, 3), takes_name(lambda name, args, output: None, 3)
    (True, False)
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # a builtin without a signature
        return False
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes = any(one.name == "name" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in parameters)
    return takes and "name" not in positional[:arguments]
