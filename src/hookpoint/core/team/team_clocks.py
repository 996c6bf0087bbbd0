"""TeamClocks: the clocks of a run with multiple ranks, which show the same time on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from hookpoint.core.schedule.clocks import Clocks


class TeamClocks(Clocks):
    """Clocks whose `elapsed` advances only when ranks agree, so that time schedules are due at the same step on all ranks."""

    __slots__ = ("_agreed",)

    def __init__(self) -> None:
        super().__init__()
        self._agreed = 0.0

    def elapsed(self) -> float:
        return self._agreed

    def milliseconds(self) -> int:
        """Return the elapsed time on this rank."""
        return int(super().elapsed() * 1000)

    def agree(self, milliseconds: int) -> None:
        """Advance the run's time to the agreed time. The time never decreases."""
        self._agreed = max(self._agreed, milliseconds / 1000)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        super().load_state_dict(state)
        self._agreed = self._elapsed
