"""MovingAverageSummary: log moving averages of training metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Unpack

from hookpoint.callbacks._shared.arguments import strings
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.errors import BadArgument
from hookpoint.core.run.run import Run


class MovingAverageSummary(Callback):
    """Log the exponential moving average of each training metric as `name/ema` at every log step.

    The average is computed from each log step's mean, and the previous average is weighted by `decay`. With bias correction,
    the first average equals the first mean. Nonfinite means are skipped. `names` selects the metrics; by default, all of them
    are averaged. Values on a device are read by the monitors' thread. Listens to on_run_begin.

    >>> MovingAverageSummary(["loss"], decay=0.9)  # doctest: +ELLIPSIS
    <...MovingAverageSummary object at ...>
    """

    ranks = "chief"
    keeps = "the moving averages"
    step_cost = "nothing; a log step takes a few microseconds per name"

    def __init__(self, names: Iterable[str] | None = None, decay: float = 0.95, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise BadArgument(f"MovingAverageSummary: decay must be at least 0 and below 1, got {decay!r}.")
        self.names = None if names is None else frozenset(strings("MovingAverageSummary", "names", names))
        self.decay = decay
        self._averages: dict[str, Average] = {}

    def on_run_begin(self, run: Run) -> None:
        self._averages = {}
        run.at_log_step(self._average)

    def _average(self, means: Mapping[str, Any]) -> dict[str, Average]:
        for name, mean in means.items():
            if self.names is None or name in self.names:
                self._averages[name] = Average(self._averages.get(name), mean, self.decay)
        return {f"{name}/ema": self._averages[name] for name in means if name in self._averages}

    def state_dict(self) -> dict[str, Any]:
        return {"sums": {name: list(average.sums()) for name, average in self._averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages = {name: Average(None, math.nan, 0.0, sums=(sums[0], sums[1])) for name, sums in state["sums"].items()}


class Average:
    """The moving average after a new value.

    It is computed once: immediately if all values are available, otherwise when the average is first read.
    """

    __slots__ = ("_decay", "_mean", "_previous", "known_sums")

    _lock = Lock()

    def __init__(self, previous: Average | None, mean: Any, decay: float, *, sums: tuple[float, float] | None = None) -> None:
        self._previous = previous
        self._mean = mean
        self._decay = decay
        self.known_sums = sums
        if not self.is_pending:
            self.compute()

    @property
    def is_pending(self) -> bool:
        """Whether reading the average now may have to wait for a device."""
        return self.known_sums is None and (getattr(self._mean, "is_pending", False) or self.pending_previous() is not None)

    def pending_previous(self) -> Average | None:
        """Return the previous average if its sums have not been computed yet, otherwise None."""
        return None if self._previous is None or self._previous.known_sums is not None else self._previous

    def sums(self) -> tuple[float, float]:
        """Return the weighted sum of the values and the sum of their weights."""
        if self.known_sums is None:
            with self._lock:
                chain = [self]  # not recursive, because the chain may be long
                while (before := chain[-1].pending_previous()) is not None:
                    chain.append(before)
                for average in reversed(chain):
                    average.compute()
        assert self.known_sums is not None
        return self.known_sums

    def compute(self) -> None:
        """Compute the sums. The sums of the previous average must already be computed."""
        if self.known_sums is None:
            total, weight = (0.0, 0.0) if self._previous is None else self._previous.sums()
            value = float(self._mean)
            if math.isfinite(value):
                decay, share = self._decay, 1 - self._decay
                total, weight = decay * total + share * value, decay * weight + share * 1.0
            self.known_sums = (total, weight)
        self._previous = self._mean = None

    def __float__(self) -> float:
        total, weight = self.sums()
        return total / weight if weight else math.nan
