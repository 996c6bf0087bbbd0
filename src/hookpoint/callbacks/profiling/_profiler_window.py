"""ProfilerWindow: when torch's profiler warms up, records and is over, counted in optimizer steps."""

from __future__ import annotations

from typing import Literal

Phase = Literal["off", "warmup", "record", "over"]


class ProfilerWindow:
    """Say what is due at a step: the step that comes next is to be recorded if it is one of `steps` from `at` on.

    `at` counts the optimizer steps done before the first that is recorded. Without it, it is `wait` steps after the first that
    is asked about. Warming up takes the steps before.
    """

    def __init__(self, at: int | None, wait: int, warmup: int, steps: int) -> None:
        self._at = at
        self._wait = wait
        self._warmup = warmup
        self._steps = steps
        self.first = 0 if at is None else at - warmup  # before it nothing is due, and nobody has to ask

    def phase(self, step: int) -> Phase:
        if self._at is None:
            self._at = step + self._wait
            self.first = self._at - self._warmup
        if step < self._at - self._warmup:
            return "off"
        return "warmup" if step < self._at else "record" if step < self._at + self._steps else "over"
