"""TopK: the ranking of TopKSaver, and its retention rule. The other rules are in `storage/retention.py`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hookpoint.callbacks._shared.arguments import integer
from hookpoint.core.checkpoint.store import Kept
from hookpoint.core.log.best import Best, Mode
from hookpoint.core.schedule.moment import Moment


class TopK:
    """Rank the `k` best values, best first. Ties go to the earlier value, and NaN is never ranked.

    Each value is stored with the moment or step at which it was logged. `step in top` is True if the value logged at that step
    is among the best. As a retention rule, a TopK keeps the checkpoints that were saved for ranked values.

    >>> top = TopK(2, "max")
    >>> [top.take(value, step) for step, value in enumerate([0.1, 0.3, 0.3, 0.1, 0.5])]
    [True, True, True, False, True]
    >>> top.ranking, 1 in top, 2 in top
    ([(0.5, 4), (0.3, 1)], True, False)
    """

    def __init__(self, k: int, mode: Mode = "min") -> None:
        self.k = integer("TopKSaver", "k", k, least=1)
        self.mode = mode
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self._ranked: list[tuple[float, Moment | int]] = []

    @property
    def ranking(self) -> list[tuple[float, int]]:
        """The ranked values as (value, step) pairs, best first."""
        return [(value, at.step if isinstance(at, Moment) else at) for value, at in self._ranked]

    @property
    def best(self) -> Best:
        """The best value and the moment it was logged."""
        best = Best(self.mode)
        for value, at in self._ranked[:1]:
            best.take(value, at)
        return best

    def __contains__(self, at: object) -> bool:
        if isinstance(at, Moment):  # older checkpoints store steps instead of moments
            return any(at.is_same(known) if isinstance(known, Moment) else at.step == known for _, known in self._ranked)
        return any(at == step for _, step in self.ranking)

    def __call__(self, kept: Sequence[Kept]) -> Iterable[Kept]:
        """Return the checkpoints to keep: those saved for ranked values."""
        return [entry for entry in kept if (entry.step if entry.moment is None else entry.moment) in self]

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value; return whether it is among the best. A second value for the same moment replaces the first."""
        if math.isnan(value):
            return False
        sign = 1 if self.mode == "min" else -1
        values = [*(pair for pair in self._ranked if pair[1] != at), (value, at)]
        self._ranked = sorted(values, key=lambda pair: sign * pair[0])[: self.k]  # the sort is stable: ties keep their order
        return at in self

    def place(self, at: Moment | int) -> int:
        """Return the rank of the value logged at this moment, starting from 1."""
        return [known for _, known in self._ranked].index(at) + 1

    def state_dict(self) -> dict[str, Any]:
        moments = [list(at) if isinstance(at, Moment) else None for _, at in self._ranked]
        return {"ranking": [list(pair) for pair in self.ranking], "moments": moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ranking = state["ranking"]
        moments = state.get("moments") or [None] * len(ranking)
        self._ranked = [
            (value, step if moment is None else Moment(*moment)) for (value, step), moment in zip(ranking, moments, strict=True)
        ]
