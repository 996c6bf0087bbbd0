"""TopK: which steps had the best values of a metric. A plain object, like Best."""

from __future__ import annotations

import math
from typing import Any

from hookpoint.callbacks.best import Mode
from hookpoint.core.errors import text


class TopK:
    """Keep the `k` best values with their steps, the best first; of equal ones the earlier stays. NaN is never among them.

    A step is `in` it as long as its value is among the best.

    >>> top = TopK(2, "max")
    >>> [top.take(value, step) for step, value in enumerate([0.1, 0.3, 0.3, 0.1, 0.5])]
    [True, True, True, False, True]
    >>> top.ranking, 1 in top, 2 in top
    ([(0.5, 4), (0.3, 1)], True, False)
    """

    def __init__(self, k: int, mode: Mode = "min") -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(text(f"k={k!r} is no number of checkpoints.", give="an integer, 1 or more"))
        if mode not in ("min", "max"):
            raise ValueError(text(f"mode={mode!r} does not say which value is better.", choose="'max', 'min'"))
        self.k = k
        self.mode = mode
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.ranking: list[tuple[float, int]] = []

    def __contains__(self, step: object) -> bool:
        return any(step == one for _, one in self.ranking)

    def take(self, value: float, step: int) -> bool:
        """Take in a value; say whether it is among the best now. A second value of a step replaces its first."""
        sign = 1 if self.mode == "min" else -1
        others = [pair for pair in self.ranking if pair[1] != step]
        if math.isnan(value):
            return False
        self.ranking = sorted([*others, (value, step)], key=lambda pair: (sign * pair[0], pair[1]))[: self.k]
        return step in self

    def state_dict(self) -> dict[str, Any]:
        return {"ranking": [list(pair) for pair in self.ranking]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ranking = [(value, step) for value, step in state["ranking"]]
