"""Checks for constructor arguments. Each returns the value or raises BadArgument."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hookpoint.core.errors import BadArgument, BadOption


def whole(owner: str, argument: str, value: Any, *, least: int = 0) -> int:
    """Return an integer that is at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadArgument(f"{owner}: {argument} must be an integer >= {least}, got {value!r}.")
    return value


def number(owner: str, argument: str, value: Any, *, least: float = -math.inf) -> float:
    """Return a finite number that is at least `least`."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        bound = "" if least == -math.inf else f" >= {least:g}"
        raise BadArgument(f"{owner}: {argument} must be a finite number{bound}, got {value!r}.")
    return value


def function(owner: str, argument: str, value: Any, **cures: str) -> Any:
    """Return a callable."""
    if not callable(value):
        raise BadArgument(f"{owner}: {argument} must be a function, got {value!r}.", **cures)
    return value


def choices(owner: str, argument: str, value: str | Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return one or more of the allowed values as a tuple."""
    chosen = (value,) if isinstance(value, str) else tuple(value)
    if not chosen or set(chosen) - set(allowed):
        raise BadArgument(f"{owner}: {argument} must be {' or '.join(map(repr, allowed))}, got {value!r}.")
    return chosen


def file_name(owner: str, argument: str, value: Any) -> str:
    """Return the name of a file in the workdir; a path is not accepted."""
    if not isinstance(value, str) or value in ("", ".", "..") or any(character in value for character in "/\\\0"):
        raise BadArgument(f"{owner}: {argument} must be the name of a file in the workdir, not a path, got {value!r}.")
    return value


def is_relative(owner: str, min_delta_mode: str) -> bool:
    """Return whether `min_delta` is relative to the best value."""
    if min_delta_mode not in ("abs", "rel"):
        raise BadOption(owner, "min_delta_mode", min_delta_mode, ("abs", "rel"))
    return min_delta_mode == "rel"


def devices_given(owner: str, given: Iterable[int]) -> tuple[int, ...]:
    """Return device indices without duplicates."""
    devices = [given] if isinstance(given, int | str) else list(given)
    if not devices or any(not isinstance(device, int) or isinstance(device, bool) or device < 0 for device in devices):
        raise BadArgument(f"{owner}: devices must be a list of device indices, got {given!r}.", write="devices=[0, 1]")
    return tuple(dict.fromkeys(devices))
