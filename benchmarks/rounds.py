"""Rounds: time the candidates in turns, so that a temporary slowdown of the machine affects all of them.

A comparison of two candidates computes one result per round and reports the median of these results. The interval is the
median's 95 % confidence interval from order statistics, which assumes nothing about the distribution of the noise.
"""

from __future__ import annotations

import gc
import math
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from typing import Any

Sample = Callable[[int], float]  # takes a number of repetitions and returns how many nanoseconds they take

NOTHING = "nothing"


@dataclass(slots=True)
class Spread:
    """A median over rounds, and its confidence interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        ordered, count = sorted(values), len(values)
        reach = 1.96 * math.sqrt(count) / 2
        low, high = max(0, math.floor(count / 2 - reach)), min(count - 1, math.ceil(count / 2 + reach))
        return cls(median(ordered), ordered[low], ordered[high])


@dataclass(slots=True)
class Timing:
    """A candidate's nanoseconds per repetition, one value per round."""

    rounds: list[float] = field(default_factory=list)

    @property
    def minimum(self) -> float:
        return min(self.rounds)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.rounds)

    def over(self, other: Timing) -> Spread:
        """Return the ratio of this candidate's time to the other's."""
        return Spread.of([own / its for own, its in zip(self.rounds, other.rounds, strict=True)])

    def beyond(self, other: Timing) -> Spread:
        """Return how much longer this candidate takes than the other."""
        return Spread.of([own - its for own, its in zip(self.rounds, other.rounds, strict=True)])


@dataclass(slots=True)
class Effort:
    """How long to measure.

    `rounds` is the number of rounds. `nanoseconds` is the approximate time per candidate in each round. `interpreters` is the
    number of fresh interpreters per program.
    """

    rounds: int
    nanoseconds: int
    interpreters: int

    def in_fewer_rounds(self, factor: int) -> Effort:
        """Return the same effort with fewer but longer rounds."""
        return Effort(max(5, self.rounds // factor), self.nanoseconds * factor, self.interpreters)


class Group:
    """Candidates that are timed in the same rounds, because they are compared with each other."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.timings: dict[str, Timing] = {}
        self._samples: dict[str, Sample] = {}
        self._is_net: set[str] = set()

    def add(self, name: str, statement: str, /, **names: Any) -> None:
        """Add a statement to time in a loop. It can use `names` as local variables. The loop's own cost is subtracted."""
        self._samples[name] = repeated(statement, names)
        self._is_net.add(name)

    def add_sample(self, name: str, sample: Sample) -> None:
        """Add a candidate that repeats and times itself."""
        self._samples[name] = sample

    def measure(self, effort: Effort) -> Group:
        samples = {NOTHING: repeated("pass", {}), **self._samples}
        times = {name: _times(sample, effort.nanoseconds) for name, sample in samples.items()}
        taken: dict[str, list[float]] = {name: [] for name in samples}
        order, shuffle = list(samples), random.Random(0).shuffle
        gc.collect()
        gc.disable()
        try:
            for _ in range(effort.rounds):
                shuffle(order)
                for name in order:
                    taken[name].append(samples[name](times[name]) / times[name])
        finally:
            gc.enable()
        # Subtract the shortest time of the empty loop in all rounds. If each round subtracted the time that its own empty loop
        # took, one slow empty loop would distort all results of its round.
        repeating = min(taken[NOTHING])
        for name in self._samples:
            self.timings[name] = Timing([one - repeating * (name in self._is_net) for one in taken[name]])
        return self

    def __getitem__(self, name: str) -> Timing:
        return self.timings[name]


def repeated(statement: str, names: dict[str, Any]) -> Sample:
    """Return a function that times repetitions of a statement in a generated loop, as timeit does."""
    source = "\n".join(
        [
            f"def sample({', '.join(['times', 'clock', *names])}):",
            "    began = clock()",
            "    for _ in range(times):",
            textwrap.indent(statement, " " * 8),
            "    return clock() - began",
        ]
    )
    made: dict[str, Any] = {}
    exec(source, made)
    sample, values = made["sample"], tuple(names.values())
    return lambda times: sample(times, perf_counter_ns, *values)


def _times(sample: Sample, nanoseconds: int) -> int:
    """Return how many repetitions take about `nanoseconds` in total. This also warms up the candidate."""
    times = 50
    while True:
        taken = max(1.0, min(sample(times) for _ in range(3)))
        if taken >= nanoseconds / 4:
            return max(50, round(times * nanoseconds / taken))
        times *= 4
