"""LambdaCallback: a callback built from functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.on import OnError, Ranks
from hookpoint.core.errors import BadArgument, UnknownPoint
from hookpoint.core.points import BY_NAME, SPELLINGS
from hookpoint.core.text.spelling import near_miss


class LambdaCallback(Callback):
    """Call functions at points: `LambdaCallback(on_epoch_end=lambda run: print(run.epoch))`.

    Each keyword is a point, in any supported spelling, or a custom point. A function receives only the arguments it names.

    >>> LambdaCallback(on_hello=lambda name: print("hello", name)).run("on_hello", {"name": "world"})
    hello world
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        on_error: OnError | None = None,
        ranks: Ranks | None = None,
        **functions: Callable[..., object],
    ) -> None:
        super().__init__(name=name, on_error=on_error, ranks=ranks)
        for point, function in functions.items():
            if not callable(function):
                raise BadArgument(f"LambdaCallback: {point} must be a function, got {function!r}.")
            if not point.startswith("on_") and point not in SPELLINGS:
                meant = f"on_{point}" if f"on_{point}" in BY_NAME else near_miss(point, SPELLINGS)
                raise UnknownPoint("LambdaCallback", point, meant or "a name that starts with on_")
            forms = [spelling.only_with for _, spelling in SPELLINGS.get(point, ())]
            if forms and None not in forms and tuple(inspect.signature(function).parameters) not in forms:
                raise UnknownPoint("LambdaCallback", point, SPELLINGS[point][0][0].name)
            setattr(self, point, function)

    def __repr__(self) -> str:
        functions: list[Any] = [name for name in vars(self) if callable(vars(self)[name])]
        return f"LambdaCallback({', '.join(functions)})"
