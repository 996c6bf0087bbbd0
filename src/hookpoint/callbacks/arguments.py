"""Arguments: numbers that callbacks are made with, checked where they are given."""

from __future__ import annotations

import math
from typing import Any

from hookpoint.core.errors import text


def whole(owner: str, argument: str, given: Any, *, least: int = 0) -> int:
    """Return an integer that is not too small, or refuse it."""
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ValueError(text(f"{owner}({argument}={given!r}) means nothing.", give=f"an integer, {least} or more"))
    return given


def number(owner: str, argument: str, given: Any, *, least: float = -math.inf) -> float:
    """Return a finite number that is not too small, or refuse it."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not math.isfinite(given) or given < least:
        bound = "" if least == -math.inf else f", {least:g} or more"
        raise ValueError(text(f"{owner}({argument}={given!r}) means nothing.", give=f"a number{bound}"))
    return given
