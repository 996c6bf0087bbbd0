"""ReaderWindow: what was logged since a reader last looked."""

from __future__ import annotations

from typing import Any

from hookpoint.core.log.metrics import Mean

MOST_PENDING = 16  # parts of a window that a reader leaves unread; more of them are settled, so that their tensors are freed


class ReaderWindow:
    """The values of a metric that one reader may see and has not read yet, as a mean weighted by samples.

    `ignored` counts the final values of the metric that are made of values of windows: whoever reads windows has seen them.
    """

    __slots__ = ("_mean", "_parts", "ignored")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: for a fresh run."""
        self._mean = Mean()
        self._parts = 0
        self.ignored = 0

    def add(self, value: float, weight: float) -> None:
        """Take in a number of the host."""
        self._mean.add(value, weight)

    def add_part(self, part: Mean) -> None:
        """Take in a closed window; its copy to the host was queued a log step ago."""
        self._mean.add_mean(part)
        self._parts += 1

    @property
    def has_many_parts(self) -> bool:
        """Whether it is time to settle what it has, though nobody reads it."""
        return self._parts >= MOST_PENDING

    def settle(self) -> None:
        """Turn what it has into two floats: the tensors behind them are freed."""
        self._mean.sums()
        self._parts = 0

    @property
    def is_pending(self) -> bool:
        """Whether reading it may wait for a copy to the host."""
        return self._mean.is_pending

    def take(self) -> float | None:
        """Return the mean and start a new window; None where nothing was logged."""
        mean, self._mean, self._parts = self._mean, Mean(), 0
        _, weight = mean.sums()
        return float(mean) if weight else None

    def state_dict(self) -> dict[str, Any]:
        return {"unread": self._mean.state(), "ignored": self.ignored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean, self._parts = Mean().restore(state.get("unread", (0.0, 0.0))), 0
        self.ignored = state.get("ignored", 0)

    __getstate__, __setstate__ = state_dict, load_state_dict  # of a callback that is copied or pickled; a Mean has a lock
