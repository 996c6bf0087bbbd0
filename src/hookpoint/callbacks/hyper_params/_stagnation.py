"""Stagnation: whether a metric has stood still for some time."""

from __future__ import annotations

import math
from typing import Any


class Stagnation:
    """Say when none of the last `last_k` values is better than the first of them by more than `threshold`; then start anew.

    Better is lower or, with `reverse`, higher. NaN is worse than anything.

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
        """Forget all values."""
        self._values: list[float] = []

    def take(self, value: float) -> bool:
        """Take in a value; say whether the metric has stood still."""
        self._values = [*self._values, value][-self.last_k :]
        if len(self._values) < self.last_k:
            return False
        first, *later = (math.inf if math.isnan(one) else -one if self.reverse else one for one in self._values)
        if any(one < first - self.threshold for one in later):
            return False
        self.reset()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])
