"""Patience: when to give up on a metric that no longer gets better."""

from __future__ import annotations

from typing import Any

from hookpoint.callbacks.best import Best, Mode
from hookpoint.core.moment import Moment


class Patience:
    """Count the values that are no progress; it is over when they are `patience`, and at least one.

    Progress is a value that is better than the best, and than `baseline`, by more than `min_delta`. NaN never is.

    >>> patience = Patience("min", 2)
    >>> [(patience.take(value, step), patience.is_over) for step, value in enumerate([3.0, 2.0, 2.0, float("nan")])]
    [(True, False), (True, False), (False, False), (False, True)]
    """

    def __init__(self, mode: Mode, patience: int = 0, *, min_delta: float = 0.0, baseline: float | None = None) -> None:
        self.best = Best(mode, min_delta=min_delta)
        self.patience = patience
        self._baseline = Best(mode, min_delta=min_delta, threshold=baseline)  # takes no value: its threshold is what to beat
        self.reset()

    def reset(self) -> None:
        """Forget all values."""
        self.best.reset()
        self.waited = 0

    @property
    def is_over(self) -> bool:
        return self.waited > 0 and self.waited >= self.patience

    def take(self, value: float, at: Moment | int) -> bool:
        """Take in a value; say whether it is the best one now."""
        is_best = self.best.take(value, at)
        is_progress = is_best and self._baseline.is_beaten_by(value)
        self.waited = 0 if is_progress else self.waited + 1
        return is_best

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self.waited = state["waited"]
