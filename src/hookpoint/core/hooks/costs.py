"""What callbacks cost: seconds per callback and point, from the iterations that are sampled and from every rarer point."""

from __future__ import annotations

from dataclasses import dataclass

SAMPLE_EVERY = 64
FIRST_SAMPLE = 8  # the first iterations warm caches up and say little
IN_THE_STEP = ("on_iter_begin", "on_train_iter_begin", "on_train_iter_end", "on_iter_end")  # what is sampled with the step


@dataclass(slots=True, eq=False)
class Cost:
    """Time a callback took at a point, over the calls that were measured."""

    callback: str
    point: str
    calls: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0  # of the first call, in which caches are still cold

    def add(self, seconds: float) -> None:
        if not self.calls:
            self.first_seconds = seconds
        self.calls += 1
        self.seconds += seconds

    @property
    def microseconds_per_call(self) -> float:
        return self.seconds / self.calls * 1e6 if self.calls else 0.0


class StepShare:
    """Find callbacks that take more than a tenth of the step, and name each of them once.

    The first step that is measured, and the first call of each callback, do not count: they warm up. What takes less than
    `LEAST_SECONDS` a step is not worth a line, however short the step is.
    """

    LIMIT = 0.1
    LEAST_SECONDS = 50e-6
    WARM_STEPS = 2  # one may have been interrupted

    def __init__(self) -> None:
        self._steps = -1
        self._step_seconds = 0.0
        self._named: set[str] = set()

    def add_step(self, seconds: float) -> None:
        self._steps += 1
        if self._steps:
            self._step_seconds += seconds

    def heavy(self, costs: list[Cost]) -> list[str]:
        """Return a line for each callback that takes too much of the step and was not named yet."""
        if self._steps < self.WARM_STEPS:
            return []
        lines = []
        costs = [cost for cost in costs if cost.point in IN_THE_STEP]
        for name in dict.fromkeys(cost.callback for cost in costs):
            seconds = sum(cost.seconds - cost.first_seconds for cost in costs if cost.callback == name)
            share = seconds / (self._step_seconds or float("inf"))
            if share > self.LIMIT and seconds / self._steps > self.LEAST_SECONDS and name not in self._named:
                self._named.add(name)
                lines.append(f"{name} takes {share:.0%} of the step; where it can run less often, use when=Every(steps=50)")
        return lines
