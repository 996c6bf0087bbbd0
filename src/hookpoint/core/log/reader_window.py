"""ReaderWindow: the values logged since a reader last read them."""

from __future__ import annotations

from typing import Any

from hookpoint.core.log.metrics import Mean

MOST_PENDING = 16  # windows that a reader leaves unread before they are converted to floats, which frees their tensors


class ReaderWindow:
    """The unread values of a metric for one reader, as a mean weighted by samples.

    `ignored` counts the final values of the metric that are built from values the reader has already seen.
    """

    __slots__ = ("_mean", "_windows", "ignored")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from scratch, for a new run."""
        self._mean, self._windows, self.ignored = Mean(), 0, 0

    def add(self, value: float, weight: float) -> None:
        """Add a host number."""
        self._mean.add(value, weight)

    def add_window(self, window: Mean) -> None:
        """Add a closed window; its copy to the host was queued one log step ago."""
        self._mean.add_mean(window)
        self._windows += 1

    @property
    def is_full(self) -> bool:
        """Whether to call `settle` before the next read."""
        return self._windows >= MOST_PENDING

    def settle(self) -> None:
        """Convert the values to floats, which frees their tensors."""
        self._mean.sums()
        self._windows = 0

    @property
    def is_pending(self) -> bool:
        """Whether reading may wait for a copy to the host."""
        return self._mean.is_pending

    def take(self) -> float | None:
        """Return the mean and start a new window; None if nothing was logged."""
        mean, self._mean, self._windows = self._mean, Mean(), 0
        _, weight = mean.sums()
        return float(mean) if weight else None

    def state_dict(self) -> dict[str, Any]:
        return {"unread": self._mean.state(), "ignored": self.ignored}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._mean, self._windows = Mean().restore(state.get("unread", (0.0, 0.0))), 0
        self.ignored = state.get("ignored", 0)

    __getstate__, __setstate__ = state_dict, load_state_dict  # for copies and pickles of a callback; a Mean has a lock
