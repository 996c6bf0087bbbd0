"""ValueSchedule: values by epoch or step, with optional interpolation."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Iterable
from operator import index
from typing import Any, Literal

from hookpoint.core.errors import BadSchedule

logger = logging.getLogger("hookpoint")

Interpolation = Literal["linear"] | None


class ValueSchedule:
    """Return the value to set when a clock has moved. A value holds from its point on; "linear" interpolates to the next one.

    Before the first point there is no value. After the last point its value holds.

    >>> schedule = ValueSchedule([(0, 1.0), (10, 0.0)], "linear")
    >>> schedule.due(-1, 0), schedule.due(0, 5), schedule.due(5, 12), schedule.due(12, 13)
    (1.0, 0.5, 0.0, None)
    """

    def __init__(self, points: Iterable[tuple[int, float]], interp: Interpolation = None) -> None:
        if interp not in (None, "linear"):
            raise BadSchedule(f"interp must be None or 'linear', got {interp!r}.")
        given = [_point(pair) for pair in points]
        pairs = sorted(given, key=lambda pair: pair[0])
        self.at = [at for at, _ in pairs]
        self.values = [value for _, value in pairs]
        self.interp = interp
        twice = [at for at, following in zip(self.at, self.at[1:], strict=False) if at == following]
        if not pairs or twice:
            problem = f"has two values at {twice[0]}" if twice else "is empty"
            raise BadSchedule(f"the schedule {problem}.", write="[(30, 1e-2), (60, 1e-3)]")
        if pairs != given:
            logger.warning("The points of a schedule are not sorted; using %s", pairs)

    def due(self, before: int, now: int) -> float | None:
        """Return the value to set when the clock has moved from `before` to `now`, or None."""
        last = bisect_right(self.at, now) - 1
        if last < 0 or before >= self.at[-1] or (self.interp is None and before >= self.at[last]):
            return None
        if self.interp is None or last == len(self.at) - 1 or now == self.at[last]:
            return self.values[last]
        low, high = self.at[last], self.at[last + 1]
        return self.values[last] + (self.values[last + 1] - self.values[last]) * ((now - low) / (high - low))


def _point(pair: Any) -> tuple[int, float]:
    try:
        at, value = pair
        at = index(at)
        is_number = not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, ValueError):
        is_number = False
    if not is_number or at < 0:
        raise BadSchedule(f"{pair!r} is not a point of a schedule.", write="(30, 1e-2): an integer >= 0 and a finite number")
    return at, value
