"""ServedTeam: a team whose processes are not at the same step, and have to be careful when they wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hookpoint.core.team.team import Answer, Team


class ServedTeam:
    """Talk as another team does, with a lag between a wish and its grant.

    `before_waiting` is called before each call that waits for the others, and raises where it must not be waited; `close` is
    called with the closing of the team inside.
    """

    inexact = "gradients were applied in the order in which they came"

    def __init__(
        self, team: Team, lag: int, before_waiting: Callable[[], None], close: Callable[[Callable[[], None]], None]
    ) -> None:
        self.rank, self.local_rank, self.size = team.rank, team.local_rank, team.size
        self.data_rank, self.data_size, self.model_rank = team.data_rank, team.data_size, team.model_rank
        self.has_stages = team.has_stages
        self.lag, self.notes = lag, team.notes
        self._team = team
        self._before_waiting = before_waiting
        self._close = close

    def gather(self, value: Any) -> list[Any]:
        self._before_waiting()
        return self._team.gather(value)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        self._before_waiting()
        return self._team.broadcast(value, source)

    def sums(self, values: Sequence[float]) -> list[float]:
        self._before_waiting()
        return self._team.sums(values)

    def to_chief(self, data: bytes) -> list[bytes]:
        self._before_waiting()
        return self._team.to_chief(data)

    def start_agreeing(self, number: int) -> Answer:
        answer = self._team.start_agreeing(number)

        def waited_for() -> int:
            self._before_waiting()
            return answer()

        return waited_for

    def any_of(self, bits: int) -> int:
        self._before_waiting()
        return self._team.any_of(bits)

    def barrier(self) -> None:
        self._before_waiting()
        self._team.barrier()

    def close(self) -> None:
        self._close(self._team.close)
