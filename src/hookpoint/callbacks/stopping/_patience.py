"""Patience: when to give up on a metric that no longer improves."""

from __future__ import annotations

from typing import Any

from hookpoint.core.log.best import Best, Mode
from hookpoint.core.schedule.moment import Moment


class Patience:
    """Count the values since the last progress. Patience is over after `patience` of them, and after one at least.

    Progress is a value that beats the last progress by more than `min_delta`. The first progress must beat `baseline`, if there
    is one. NaN never is progress. `best` is the best of all values, whatever the baseline.

    >>> patience = Patience("min", 2)
    >>> [(patience.take(value, step), patience.is_over) for step, value in enumerate([3.0, 2.0, 2.0, float("nan")])]
    [(True, False), (True, False), (False, False), (False, True)]
    """

    def __init__(
        self, mode: Mode, patience: int = 0, *, min_delta: float = 0.0, relative: bool = False, baseline: float | None = None
    ) -> None:
        self.best = Best(mode, min_delta=min_delta, relative=relative)
        self.patience = patience
        self._progress = Best(mode, min_delta=min_delta, threshold=baseline, relative=relative)
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self.best.reset()
        self._progress.reset()
        self.waited = 0

    @property
    def is_over(self) -> bool:
        return self.waited > 0 and self.waited >= self.patience

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value; return whether it is the best so far."""
        self.waited = 0 if self._progress.take(value, at) else self.waited + 1
        return self.best.take(value, at)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "progress": self._progress.state_dict(), "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self._progress.reset()
        if "progress" in state:
            self._progress.load_state_dict(state["progress"])
        elif self.best.value is not None and self._progress.is_beaten_by(self.best.value):
            self._progress.load_state_dict(state["best"])  # in older checkpoints, the best counted once it beat the baseline
        self.waited = state["waited"]
