"""Plateau: when to reduce a setting because a metric no longer improves."""

from __future__ import annotations

from typing import Any

from hookpoint.core.log.best import Best, Mode
from hookpoint.core.schedule.moment import Moment


class Plateau:
    """Count the values since the best one until there are `patience`. After a reduction, `cooldown` values do not count.

    >>> plateau = Plateau("min", patience=2)
    >>> [plateau.take(value, step) for step, value in enumerate([3.0, 2.0, 2.0, 2.0])]
    [False, False, False, True]
    """

    def __init__(self, mode: Mode, *, patience: int, min_delta: float = 0.0, relative: bool = False, cooldown: int = 0) -> None:
        self.best = Best(mode, min_delta=min_delta, relative=relative)
        self.patience = patience
        self.cooldown = cooldown
        self.reset()

    def reset(self) -> None:
        """Discard all values."""
        self.best.reset()
        self.waited = self.cools_for = 0

    def take(self, value: float, at: Moment | int) -> bool:
        """Add a value; return whether to reduce now. Call `start_cooling` after a reduction, or the next value returns True."""
        if self.cools_for:
            self.cools_for -= 1
            self.waited = 0
        if self.best.take(value, at):
            self.waited = 0
        elif not self.cools_for:
            self.waited += 1
            return self.waited >= self.patience
        return False

    def start_cooling(self) -> None:
        self.cools_for, self.waited = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.state_dict(), "waited": self.waited, "cools_for": self.cools_for}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best.load_state_dict(state["best"])
        self.waited, self.cools_for = state["waited"], state["cools_for"]
