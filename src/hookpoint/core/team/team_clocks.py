"""TeamClocks: the counters of a run with multiple ranks, with the same time on all of them."""

from __future__ import annotations

from collections.abc import Mapping

from hookpoint.core.schedule.clocks import Clocks


class TeamClocks(Clocks):
    """Clocks whose `elapsed` advances when ranks agree, so that time schedules are due at the same step on all ranks."""

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
        """Set the time of the run, unless it is already later."""
        self._agreed = max(self._agreed, milliseconds / 1000)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        super().load_state_dict(state)
        self._agreed = self._elapsed
