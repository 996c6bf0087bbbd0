"""Knob: a callback setting that can be changed while a run is training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hookpoint.core.errors import BadArgument, BadValue, CompileError

TYPES = (float, int, bool, str)


@dataclass(frozen=True, slots=True)
class Knob:
    """A callback setting that live control can change. `name` is the name of the callback's attribute.

    kind: float, int, bool or str. float also accepts integers.
    low, high: The smallest and the largest allowed value.
    choices: The allowed values.
    about: A one-line description.

        class MixUp(Callback):
            knobs = (Knob("alpha", float, low=0.0, high=1.0, about="strength of the mixing"),)

            def __init__(self, alpha=0.2):
                self.alpha = alpha

            def on_knob(self, run, name, was, value):     # optional; called on all ranks; raise an error to refuse
                ...

    >>> Knob("alpha", float, low=0.0, high=1.0).check("MixUp.alpha", 1)
    1.0
    """

    name: str
    kind: type[Any] = float
    low: float | None = None
    high: float | None = None
    choices: Sequence[Any] | None = None
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise BadArgument(f"Knob: name must be the name of an attribute, got {self.name!r}.")
        if self.kind not in TYPES:
            raise BadArgument(f"Knob({self.name!r}): kind must be float, int, bool or str, got {self.kind!r}.")
        if self.kind not in (float, int) and (self.low is not None or self.high is not None):
            raise BadArgument(f"Knob({self.name!r}): low and high require kind float or int, got {self.kind.__name__}.")

    def check(self, name: str, value: Any) -> Any:
        """Return the value, converted to the knob's type. Raise BadValue if the value is not allowed."""
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not self.kind or (isinstance(value, float) and not math.isfinite(value)):
            finite = "a finite " if self.kind is float else "a " if self.kind is not int else "an "
            raise BadValue(f"{name} must be {finite}{self.kind.__name__}, got {value!r}.")
        if self.low is not None and value < self.low:
            raise BadValue(f"{name} must be >= {self.low:g}, got {value!r}.")
        if self.high is not None and value > self.high:
            raise BadValue(f"{name} must be <= {self.high:g}, got {value!r}.")
        if self.choices is not None and value not in self.choices:
            raise BadValue(f"{name} must be one of {', '.join(map(repr, self.choices))}, got {value!r}.")
        return value

    def described(self, name: str, value: Any) -> dict[str, Any]:
        """Return a dict of plain values that describes the knob: its full name, type, current value and limits."""
        limits = {"low": self.low, "high": self.high, "choices": self.choices and list(self.choices), "about": self.about}
        shown = {key: limit for key, limit in limits.items() if limit is not None and limit != ""}
        return {"name": name, "type": self.kind.__name__, "value": value, **shown}


def check_knobs(name: str, kind: type, subject: object) -> None:
    """Raise CompileError if a callback declares a knob without a matching attribute, or an action without a method."""
    knobs, actions = knobs_of(kind), actions_of(kind)
    if isinstance(getattr(kind, "knobs", ()), Knob):
        raise CompileError(f"{name}.knobs must be a tuple, got a single Knob.", write='knobs = (Knob("alpha", float),)')
    for knob in knobs:
        if not isinstance(knob, Knob):
            raise CompileError(f"{name}.knobs: expected a Knob, got {knob!r}.", write='knobs = (Knob("alpha", float),)')
        if not hasattr(subject, knob.name):
            raise CompileError(f"{name} has a knob '{knob.name}', but no attribute with that name.", set=f"self.{knob.name}")
    for action in actions:
        if not isinstance(action, str) or not callable(getattr(subject, action, None)):
            raise CompileError(
                f"{name}.actions: {action!r} is not a method.", write='actions = ("reset",), and def reset(self)'
            )
    names = [knob.name for knob in knobs]
    if len(set(names)) < len(names):
        raise CompileError(f"{name} has two knobs with the same name: {', '.join(names)}.", rename="one of them")


def knobs_of(kind: type) -> tuple[Any, ...]:
    """Return the knobs that a class declares."""
    return _as_tuple(kind, "knobs")


def actions_of(kind: type) -> tuple[Any, ...]:
    """Return the names of a callback class's actions: the methods that live control may call."""
    return _as_tuple(kind, "actions")


def _as_tuple(kind: type, name: str) -> tuple[Any, ...]:
    declared = getattr(kind, name, ())  # read from the class, because an instance may store other data under this name
    return tuple(declared) if isinstance(declared, tuple | list) else ()
