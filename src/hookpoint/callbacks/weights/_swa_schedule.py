"""SWASchedule: from which epoch on weights are averaged, and how the learning rate gets to that of the averaging."""

from __future__ import annotations

import math
from typing import Any, Literal

from hookpoint.callbacks._shared.arguments import whole
from hookpoint.core.errors import BadArgument, BadLoop

ANNEAL = ("cos", "linear")


class SWASchedule:
    """Say which epoch is the first to count, and how far the rate is on its way to the goal in an epoch.

    `start` is that epoch, from 1, or the part of all epochs that comes before it. In the first epoch the rate is one step of
    `anneal_epochs` on its way, as SWALR's is after its first step; with 0 or 1 it is there at once.

    >>> SWASchedule(0.75, 10, "cos").first_epoch(8)
    7
    >>> SWASchedule(3, 4, "linear").rate(0.4, 0.2, epoch=4, first=3)
    0.30000000000000004
    """

    def __init__(self, start: float, anneal_epochs: int, anneal: Literal["cos", "linear"]) -> None:
        is_number = isinstance(start, int | float) and not isinstance(start, bool)
        if not is_number or not (0 < start < 1 if isinstance(start, float) else start >= 1):
            cures = {"give": "the first epoch that counts, an integer from 1, or a part of the epochs, such as 0.75"}
            raise BadArgument(f"StochasticWeightAveraging(start={start!r}) means nothing.", **cures)
        if anneal not in ANNEAL:
            raise BadArgument(f"StochasticWeightAveraging(anneal={anneal!r}) means nothing.", choose="'cos' or 'linear'")
        self.start, self.anneal = start, anneal
        self.anneal_epochs = whole("StochasticWeightAveraging", "anneal_epochs", anneal_epochs)

    def first_epoch(self, epochs: int | None) -> int:
        """Return the first epoch that counts, of so many."""
        if isinstance(self.start, int):
            return self.start
        if epochs is None:
            raise BadLoop(f"start={self.start} is a part of the epochs, and nobody knows how many there are.", give="the epoch")
        return int(self.start * epochs) + 1

    def rate(self, old: Any, goal: float, *, epoch: int, first: int) -> Any:
        """Return the rate of an epoch, on its way from the old one, of before the first epoch, to the goal."""
        way = min(1.0, (epoch - first + 1) / max(1, self.anneal_epochs))
        share = (1 - math.cos(math.pi * way)) / 2 if self.anneal == "cos" else way
        return goal if share == 1 else goal * share + old * (1 - share)
