"""Kept: what hookpoint keeps with a callback, apart from the attributes of its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

SLOT = "_hookpoint"


@dataclass(slots=True, eq=False)
class Kept:
    """What hookpoint knows of one callback. A copy of the callback has neither its run nor its compiled handlers."""

    name: str | None = None
    schedule: Any = None
    component: Any = None
    save_path: Any = None
    run: Any = None
    handlers: list[Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that a copy has to have."""
        return all(value is None for value in self.__getstate__())

    def __getstate__(self) -> tuple[Any, ...]:
        return self.name, self.schedule, self.component, self.save_path

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name, self.schedule, self.component, self.save_path = state
        self.run = self.handlers = None


class FromKept:
    """Read what is kept under this name. An attribute of the instance or its class wins, and may mean anything."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, callback: Any, owner: type) -> Any:
        if callback is None:  # @dataclass asks so whether a field of this name has a default
            raise AttributeError(self._name)
        return getattr(what_is_kept(callback), self._name)


NOTHING = Kept()


def what_is_kept(callback: Any) -> Kept:
    """Return what is kept with a callback, to read; looking adds no attribute to it."""
    kept: Kept = vars(callback).get(SLOT, NOTHING)
    return kept


def kept_of(callback: Any) -> Kept:
    """Return what is kept with a callback, to write to; also one whose class is frozen or never calls `super().__init__()`."""
    kept: Kept = vars(callback).setdefault(SLOT, Kept())
    return kept


def state_of(callback: Any) -> dict[str, Any]:
    """Return the attributes a copy gets: all but those that belong to the run of the original."""
    state = {name: value for name, value in vars(callback).items() if not name.startswith(SLOT) and name != "_run"}
    kept = copy(what_is_kept(callback))
    return state if kept.is_empty else {**state, SLOT: kept}


def name_it(callback: Any, name: str) -> None:
    """Give a callback the name that identifies it; `callback.name` shows it unless the class has set its own."""
    kept_of(callback).name = name
    vars(callback).setdefault("name", name)


def name_by_default(callback: Any, name: str | None) -> None:
    """Give a callback this name if neither `name=` nor its class has named it."""
    if name is not None and identity_of(callback) is None:
        name_it(callback, name)


def identity_of(callback: Any) -> str | None:
    """Return the name that was given as `name=` or by the class; an attribute of the instance does not count."""
    given = what_is_kept(callback).name
    named = given if given is not None else _of_class(callback, "name")
    return named if isinstance(named, str) and named else None


def schedule_of(callback: Any) -> Any:
    """Return the schedule that was given by `.when(...)` or by the class, or None."""
    given = what_is_kept(callback).schedule
    schedule = given if given is not None else _of_class(callback, "schedule")
    return schedule if hasattr(schedule, "arm") else None


def run_of(callback: Any) -> Callable[..., Any] | None:
    """Return the method `run`, also where an instance has a value of that name; None where the class has one."""
    method = getattr(type(callback), "run", None)
    return partial(method, callback) if inspect.isroutine(method) else None


def _of_class(callback: Any, name: str) -> Any:
    fields = getattr(type(callback), "__dataclass_fields__", ())
    return None if name in fields else inspect.getattr_static(type(callback), name, None)
