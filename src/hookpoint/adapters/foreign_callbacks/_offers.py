"""Offers: the base class of objects that another library's callbacks receive instead of that library's trainer or model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import NotOffered
from hookpoint.core.run.run import Run


@dataclass(slots=True, eq=False)
class Caller:
    """A run, and the name of the callback that the run is calling."""

    run: Run
    name: str = ""

    def stop(self, what: str) -> None:
        """Stop the run. The reason begins with the callback's name."""
        self.run.stop(f"{self.name} {what}")


class Offers:
    """An object with a fixed set of attributes. Accessing any other attribute raises an error that names the callback.

    In a subclass, `__slots__` lists the attributes that callbacks may set. All other attributes are properties and methods.
    `SHOWN` is the object's name in error messages.
    """

    __slots__ = ("_caller",)

    SHOWN = ""  # the name by which callbacks access the object, such as "trainer.strategy"

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(type(self), name):  # the property exists but raised AttributeError: call it again to raise its own error
            return object.__getattribute__(self, name)
        raise NotOffered(self._caller.name, f"{self.SHOWN}.{name}", self._offered())

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            why = "which a hookpoint run does not let callbacks set"
            raise NotOffered(self._caller.name, f"{self.SHOWN}.{name} = ...", self._offered(), why) from None

    @classmethod
    def _offered(cls) -> list[str]:
        own = set(dir(cls)) - set(dir(Offers))
        return [name for name in own if not name.startswith("_")]
