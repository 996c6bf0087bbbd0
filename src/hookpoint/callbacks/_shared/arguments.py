"""Arguments: numbers that callbacks are made with, checked where they are given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hookpoint.core.errors import BadArgument, BadOption


def whole(owner: str, argument: str, given: Any, *, least: int = 0) -> int:
    """Return an integer that is not too small, or refuse it."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise BadArgument(f"{owner}({argument}={given!r}) means nothing.", give=f"an integer, {least} or more")
    return given


def number(owner: str, argument: str, given: Any, *, least: float = -math.inf) -> float:
    """Return a finite number that is not too small, or refuse it."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not math.isfinite(given) or given < least:
        bound = "" if least == -math.inf else f", {least:g} or more"
        raise BadArgument(f"{owner}({argument}={given!r}) means nothing.", give=f"a number{bound}")
    return given


def is_relative(owner: str, min_delta_mode: str) -> bool:
    """Return whether `min_delta` is a share of the best value, or refuse what says neither."""
    if min_delta_mode not in ("abs", "rel"):
        raise BadOption(owner, "min_delta_mode", min_delta_mode, ("abs", "rel"))
    return min_delta_mode == "rel"


def devices_given(owner: str, given: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of devices, each once, or refuse what are none."""
    several = [given] if isinstance(given, int | str) else list(given)
    if not several or any(not isinstance(one, int) or isinstance(one, bool) or one < 0 for one in several):
        raise BadArgument(f"{owner}(devices={given!r}) names no devices.", give="their numbers, as in devices=[0, 1]")
    return tuple(dict.fromkeys(several))
