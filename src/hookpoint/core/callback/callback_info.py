"""CallbackInfo: the data that hookpoint stores on a callback, separate from the callback's own attributes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

SLOT = "_hookpoint"


@dataclass(slots=True, eq=False, repr=False)
class CallbackInfo:
    """The data that hookpoint stores on one callback. A copy omits the run and the compiled handlers."""

    name: str | None = None
    schedule: Any = None
    component: Any = None
    save_path: Any = None
    run: Any = None
    handlers: list[Any] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        return self.name, self.schedule, self.component, self.save_path

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name, self.schedule, self.component, self.save_path = state
        self.run = self.handlers = None


class FromInfo:
    """Read a field of the CallbackInfo. An attribute of the same name on the instance or its class takes precedence."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, callback: Any, owner: type) -> Any:
        if callback is None:  # @dataclass reads the class attribute to look for a field's default
            raise AttributeError(self.name)
        return getattr(read_info(callback), self.name)


NOTHING = CallbackInfo()


def read_info(callback: Any) -> CallbackInfo:
    """Return a callback's CallbackInfo. If the callback has none, return a shared empty one, which must not be modified."""
    info: CallbackInfo = vars(callback).get(SLOT, NOTHING)
    return info


def info_of(callback: Any) -> CallbackInfo:
    """Return a callback's CallbackInfo. If the callback has none, add one to the callback.

    This also works for frozen dataclasses, and for classes that do not call `super().__init__()`.
    """
    info: CallbackInfo = vars(callback).setdefault(SLOT, CallbackInfo())
    return info


def copied_state(callback: Any) -> dict[str, Any]:
    """Return the attributes to put on a copy of a callback. Attributes that refer to the original's run are omitted."""
    state = {name: value for name, value in vars(callback).items() if not name.startswith(SLOT) and name != "_run"}
    info = copy(read_info(callback))
    return {**state, SLOT: info} if any(value is not None for value in info.__getstate__()) else state


def set_name(callback: Any, name: str) -> None:
    """Set the name that identifies a callback. `callback.name` returns it unless the callback defines its own `name`."""
    info_of(callback).name = name
    vars(callback).setdefault("name", name)


def set_default_name(callback: Any, name: str | None) -> None:
    """Set the name of a callback unless `name=` or its class has set one."""
    if name is not None and identity_of(callback) is None:
        set_name(callback, name)


def identity_of(callback: Any) -> str | None:
    """Return the name that was set with `name=` or by the class. Ignore an instance attribute `name`."""
    stored = read_info(callback).name
    name = stored if stored is not None else _class_attribute(callback, "name")
    return name if isinstance(name, str) and name else None


def schedule_of(callback: Any) -> Any:
    """Return the schedule set by `.when(...)` or by the class, or None."""
    stored = read_info(callback).schedule
    schedule = stored if stored is not None else _class_attribute(callback, "schedule")
    return schedule if hasattr(schedule, "arm") else None


def run_method(callback: Any) -> Callable[..., Any] | None:
    """Return the `run` method of the class, even if an instance attribute hides it. Return None if there is no such method."""
    method = getattr(type(callback), "run", None)
    return partial(method, callback) if inspect.isroutine(method) else None


def _class_attribute(callback: Any, name: str) -> Any:
    fields = getattr(type(callback), "__dataclass_fields__", ())
    return None if name in fields else inspect.getattr_static(type(callback), name, None)
