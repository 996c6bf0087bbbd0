"""LambdaCallback: a callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.callback.callback import Callback
from hookpoint.core.callback.on import OnError, Ranks
from hookpoint.core.errors import UnknownPoint
from hookpoint.core.points import SPELLINGS
from hookpoint.core.text.spelling import near_miss


class LambdaCallback(Callback):
    """Run functions at points: `LambdaCallback(on_epoch_end=lambda run: print(run.epoch))`.

    Keywords are points in any spelling, or points of one's own; a function takes just the arguments it names.

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
                raise TypeError(f"LambdaCallback({point}=...) takes a function, not {function!r}")
            if not point.startswith("on_") and point not in SPELLINGS:
                raise UnknownPoint("LambdaCallback", point, near_miss(point, SPELLINGS) or "a name that begins with on_")
            setattr(self, point, function)

    def __repr__(self) -> str:
        functions: list[Any] = [name for name in vars(self) if callable(vars(self)[name])]
        return f"LambdaCallback({', '.join(functions)})"
