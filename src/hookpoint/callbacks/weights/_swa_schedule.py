"""SWASchedule: the first averaged epoch, and the learning rate from then on."""

from __future__ import annotations

import math
from typing import Any, Literal

from hookpoint.callbacks._shared.arguments import choices, whole
from hookpoint.core.errors import BadArgument, BadLoop


class SWASchedule:
    """Return the first averaged epoch, and the learning rate of each epoch.

    `start` is that epoch, from 1, or the share of all epochs before it. The rate reaches its target in `anneal_epochs` epochs.
    In the first epoch it is as after the first step of SWALR. With 0 or 1 it is the target at once.

    >>> SWASchedule(0.75, 10, "cos").first_epoch(8)
    7
    >>> SWASchedule(3, 4, "linear").rate(0.4, 0.2, epoch=4, first=3)
    0.30000000000000004
    """

    def __init__(self, start: float, anneal_epochs: int, anneal: Literal["cos", "linear"]) -> None:
        is_number = isinstance(start, int | float) and not isinstance(start, bool)
        if not is_number or not (0 < start < 1 if isinstance(start, float) else start >= 1):
            expected = "an epoch >= 1 or a share of the epochs between 0 and 1"
            raise BadArgument(f"StochasticWeightAveraging: start must be {expected}, got {start!r}.")
        self.start = start
        (self.anneal,) = choices("StochasticWeightAveraging", "anneal", anneal, ("cos", "linear"))
        self.anneal_epochs = whole("StochasticWeightAveraging", "anneal_epochs", anneal_epochs)

    def first_epoch(self, epochs: int | None) -> int:
        """Return the first averaged epoch of a run with this number of epochs."""
        if isinstance(self.start, int):
            return self.start
        if epochs is None:
            raise BadLoop(f"start={self.start} needs a run with a known number of epochs.", give="the epoch as an integer")
        return int(self.start * epochs) + 1

    def rate(self, old: Any, target: float, *, epoch: int, first: int) -> Any:
        """Return the rate of an epoch, between the old rate and the target."""
        progress = min(1.0, (epoch - first + 1) / max(1, self.anneal_epochs))
        share = (1 - math.cos(math.pi * progress)) / 2 if self.anneal == "cos" else progress
        return target if share == 1 else target * share + old * (1 - share)
