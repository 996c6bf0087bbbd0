"""AsyncTeam: a team whose ranks are not at the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.team.team import Answer
from hookpoint.parallel.team.torch_team import MESSAGES, TorchTeam


class AsyncTeam(TorchTeam):
    """Check before each wait for other ranks that it cannot deadlock. Requests take effect after `lag` steps.

    `before_waiting` raises if this rank must not wait now. `on_close` is called with a function that closes the team.
    """

    inexact = "gradients were applied in the order in which they came"

    def __init__(
        self, *, lag: int, before_waiting: Callable[[], None], on_close: Callable[[Callable[[], None]], None], **options: Any
    ) -> None:
        super().__init__(**options)
        self.lag, self._before_waiting, self._on_close = lag, before_waiting, on_close

    def _group(self, number: int = MESSAGES) -> Any:
        if number == MESSAGES:
            self._before_waiting()
        return super()._group(number)

    def start_agreeing(self, number: int) -> Answer:
        answer = super().start_agreeing(number)

        def checked_answer() -> int:
            self._before_waiting()
            return answer()

        return checked_answer

    def close(self) -> None:
        self._on_close(super().close)
