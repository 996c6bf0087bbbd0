"""Check constructor arguments. Most functions return the checked value, or raise BadArgument if it is invalid."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from hookpoint.core.errors import BadArgument


def integer(owner: str, argument: str, value: Any, *, least: int = 0) -> int:
    """Return the value if it is an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadArgument(f"{owner}: {argument} must be an integer >= {least}, got {value!r}.")
    return value


def number(owner: str, argument: str, value: Any, *, least: float = -math.inf) -> float:
    """Return the value if it is a finite number of at least `least`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise BadArgument(f"{owner}: {argument} must be a finite number{bound}, got {value!r}.")
    return value


def positive(owner: str, argument: str, value: Any, **cures: str) -> float:
    """Return the value if it is a finite number above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise BadArgument(f"{owner}: {argument} must be a number > 0, got {value!r}.", **cures)
    return value


def string(owner: str, argument: str, value: Any) -> str:
    """Return the value if it is a non-empty string."""
    if not isinstance(value, str) or not value:
        raise BadArgument(f"{owner}: {argument} must be a non-empty string, got {value!r}.")
    return value


def strings(owner: str, argument: str, values: Any) -> tuple[str, ...]:
    """Return the values as a tuple if they are non-empty strings. A single string counts as one value."""
    listed = (values,) if isinstance(values, str) else tuple(values) if isinstance(values, Iterable) else (values,)
    if not all(isinstance(value, str) and value for value in listed):
        raise BadArgument(f"{owner}: {argument} must be a list of non-empty strings, got {values!r}.")
    return listed


def function(owner: str, argument: str, value: Any, *, or_none: bool = False, **cures: str) -> Any:
    """Return the value if it is callable. With `or_none`, None is also accepted."""
    if not callable(value) and not (or_none and value is None):
        raise BadArgument(f"{owner}: {argument} must be a function, got {value!r}.", **cures)
    return value


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a function's parameters, or an empty list for a builtin without a signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def misfit(function: Callable[..., Any], *arguments: Any) -> str:
    """Return why a function cannot be called with these arguments, or "" if it can be called or has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""


def choice(owner: str, argument: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return the value if it is one of the allowed values."""
    if not isinstance(value, str) or value not in allowed:
        names = f"{', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}"
        raise BadArgument(f"{owner}: {argument} must be {names}, got {value!r}.")
    return value


def choices(owner: str, argument: str, values: str | Iterable[str], allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values as a tuple if there is at least one and all of them are allowed."""
    chosen = (values,) if isinstance(values, str) or not isinstance(values, Iterable) else tuple(values) or (values,)
    return tuple(choice(owner, argument, value, allowed) for value in chosen)


def file_name(owner: str, argument: str, value: Any) -> str:
    """Return the value if it is a file name. Paths are not accepted, because the file is always in the workdir."""
    if not isinstance(value, str) or value in ("", ".", "..") or any(character in value for character in "/\\\0"):
        raise BadArgument(f"{owner}: {argument} must be the name of a file in the workdir, not a path, got {value!r}.")
    return value


def device_indices(owner: str, devices: Iterable[int]) -> tuple[int, ...]:
    """Return the device indices without duplicates."""
    indices = list(devices) if isinstance(devices, Iterable) and not isinstance(devices, str) else [devices]
    if not indices or any(not isinstance(index, int) or isinstance(index, bool) or index < 0 for index in indices):
        raise BadArgument(f"{owner}: devices must be a list of device indices, got {devices!r}.", write="devices=[0, 1]")
    return tuple(dict.fromkeys(indices))
