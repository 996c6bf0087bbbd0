"""Stagnation: when a metric has not improved for some time."""

from __future__ import annotations

import math
from typing import Any


class Stagnation:
    """Detect that none of the last `last_k` values beats the first of them by more than `threshold`; then start over.

    Lower is better or, with `reverse`, higher. NaN is worse than any number.

    >>> stands_still = Stagnation(0.5, 3)
    >>> [stands_still.take(value) for value in [9.0, 8.0, 7.0, 7.0, 6.75, 5.0]]
    [False, False, False, False, True, False]
    """

    def __init__(self, threshold: float, last_k: int, *, reverse: bool = False) -> None:
        self.threshold = threshold
        self.last_k = last_k
        self.reverse = reverse
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self._values: list[float] = []

    def take(self, value: float) -> bool:
        """Add a value; return whether the metric stagnates."""
        self._values = [*self._values, value][-self.last_k :]
        if len(self._values) < self.last_k:
            return False
        first, *later = (math.inf if math.isnan(value) else -value if self.reverse else value for value in self._values)
        is_stagnant = all(value >= first - self.threshold for value in later)
        if is_stagnant:
            self.reset()
        return is_stagnant

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])
