"""Costs: the time that each callback takes at each point.

Points inside an iteration are timed only in sampled iterations. All other points are always timed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

SAMPLE_EVERY = 64
FIRST_SAMPLE = 8  # number of the first sampled iteration in a training pass; earlier ones warm up caches
FIRST_SAMPLE_IN_EVALUATION = 2  # number of the first sampled iteration in a validation or prediction pass; these may be short
STEP_POINTS = ("on_backward_begin", "on_backward_end", "on_step_begin", "on_step_end")
IN_THE_STEP = ("on_iter_begin", "on_train_iter_begin", *STEP_POINTS, "on_train_iter_end", "on_iter_end")
IN_EVALUATION = {f"on_{mode}_iter_{end}": mode for mode in ("val", "pred") for end in ("begin", "end")}


@dataclass(slots=True, eq=False)
class Cost:
    """The measured time of a callback at a point."""

    callback: str
    point: str
    calls: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0  # the duration of the first call, when caches are cold
    is_trigger: bool = False
    in_run: bool = False  # whether the callback overrides `run`, which is called at every point

    def add(self, seconds: float) -> None:
        if not self.calls:
            self.first_seconds = seconds
        self.calls += 1
        self.seconds += seconds

    @property
    def microseconds_per_call(self) -> float:
        return self.seconds / self.calls * 1e6 if self.calls else 0.0


class StepShare:
    """Find callbacks that take more than a tenth of the step time, and report each of them once. Count the sampled iterations.

    The first measured step and the first call of each callback are warm-up and do not count. A callback that takes less than
    `MIN_SECONDS` per step is never reported.
    """

    LIMIT = 0.1
    MIN_SECONDS = 50e-6
    WARM_STEPS = 2  # a single step may be an outlier

    def __init__(self) -> None:
        self._steps = -1
        self._step_seconds = 0.0
        self._reported: set[str] = set()
        self._samples: Counter[str] = Counter()
        self._batches: Counter[str] = Counter()

    def add(self, mode: str, seconds: float) -> None:
        """Count a sampled iteration in this mode. In training, also record how many seconds the step took."""
        self._samples[mode] += 1
        if mode == "train":
            self.add_step(seconds)

    def add_pass(self, mode: str, batches: int) -> None:
        """Count the batches of a pass that ended."""
        self._batches[mode] += batches

    def calls_per_sample(self, point: str, iterations: int) -> float:
        """Return the number of times that a point fired, divided by the number of times that it was sampled.

        `iterations` is the number of training iterations in this process.
        """
        if point in IN_THE_STEP:
            return max(1.0, iterations / (self._samples["train"] or 1))
        mode = IN_EVALUATION.get(point, "")
        return max(1.0, self._batches[mode] / (self._samples[mode] or 1))

    def add_step(self, seconds: float) -> None:
        self._steps += 1
        if self._steps:
            self._step_seconds += seconds

    def heavy(self, costs: list[Cost]) -> list[str]:
        """Return a line for each callback that takes too much of the step time and has not been reported yet."""
        if self._steps < self.WARM_STEPS:
            return []
        lines = []
        costs = [cost for cost in costs if cost.point in IN_THE_STEP]
        for name in dict.fromkeys(cost.callback for cost in costs):
            own = [cost for cost in costs if cost.callback == name]
            seconds = sum(cost.seconds - cost.first_seconds for cost in own)
            share = seconds / (self._step_seconds or float("inf"))
            if share > self.LIMIT and seconds / self._steps > self.MIN_SECONDS and name not in self._reported:
                self._reported.add(name)
                slowest = max(own, key=lambda cost: cost.seconds)
                lines.append(f"{name} takes {share:.0%} of the step time; to call it less often, use {_less_often(slowest)}")
        return lines


def _less_often(cost: Cost) -> str:
    if cost.is_trigger:
        return ".when(Every(steps=50))"
    if cost.in_run:
        return "on_trigger and .when(Every(steps=50)) instead of run"
    return f'@on("{cost.point}", when=Every(steps=50))'
