"""TopK: which moments had the best values of a metric. A plain object, like Best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hookpoint.core.checkpoint.store import Kept
from hookpoint.core.errors import BadArgument
from hookpoint.core.log.best import Best, Mode
from hookpoint.core.schedule.moment import Moment


class TopK:
    """Keep the `k` best values with their moments, the best first; of equal ones the earlier stays. NaN is never among them.

    A moment, or a step, is `in` it as long as its value is among the best. As a rule, it keeps the checkpoints of these values.

    >>> top = TopK(2, "max")
    >>> [top.take(value, step) for step, value in enumerate([0.1, 0.3, 0.3, 0.1, 0.5])]
    [True, True, True, False, True]
    >>> top.ranking, 1 in top, 2 in top
    ([(0.5, 4), (0.3, 1)], True, False)
    """

    def __init__(self, k: int, mode: Mode = "min") -> None:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise BadArgument(f"k={k!r} is no number of checkpoints.", give="an integer, 1 or more")
        if mode not in ("min", "max"):
            raise BadArgument(f"mode={mode!r} does not say which value is better.", choose="'max', 'min'")
        self.k = k
        self.mode = mode
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self._ranked: list[tuple[float, Moment | int]] = []

    @property
    def ranking(self) -> list[tuple[float, int]]:
        """The values with their steps, the best first."""
        return [(value, _step(at)) for value, at in self._ranked]

    @property
    def best(self) -> Best:
        """The best value, with its moment."""
        best = Best(self.mode)
        for value, at in self._ranked[:1]:
            best.take(value, at)
        return best

    def __contains__(self, at: object) -> bool:
        if isinstance(at, Moment):  # older checkpoints have the steps only
            return any(at.is_same(one) if isinstance(one, Moment) else at.step == one for _, one in self._ranked)
        return any(at == step for _, step in self.ranking)

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        """Return the checkpoints of values that are among the best: it is a rule of which ones to keep."""
        return [one for one in kept if (one.step if one.moment is None else one.moment) in self]

    def take(self, value: float, at: Moment | int) -> bool:
        """Take in a value; say whether it is among the best now. A second value of a moment replaces its first."""
        sign = 1 if self.mode == "min" else -1
        others = [pair for pair in self._ranked if pair[1] != at]
        if math.isnan(value):
            return False
        self._ranked = sorted([*others, (value, at)], key=lambda pair: sign * pair[0])[: self.k]  # equal ones stay as they came
        return at in self

    def place(self, at: Moment | int) -> int:
        """Return which one it is of the best, from 1."""
        return [one for _, one in self._ranked].index(at) + 1

    def state_dict(self) -> dict[str, Any]:
        moments = [list(at) if isinstance(at, Moment) else None for _, at in self._ranked]
        return {"ranking": [list(pair) for pair in self.ranking], "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ranking = state["ranking"]
        moments = state.get("moments") or [None] * len(ranking)
        self._ranked = [
            (value, step if moment is None else Moment(*moment)) for (value, step), moment in zip(ranking, moments, strict=True)
        ]


def _step(at: Moment | int) -> int:
    return at.step if isinstance(at, Moment) else at
