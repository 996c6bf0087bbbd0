"""Compare the time of a training step in a bare torch loop and in a Runner. Both take turns in the same process."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from rounds import Group, Timing
from torch import nn

from hookpoint import Callback
from hookpoint.presets.runner import Runner

Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer, nn.Module]]
Took = tuple[float, float]  # CPU time of this thread and wall time, both in nanoseconds per step

WARM_UP = 20  # steps at the beginning of a turn that are not timed


class Clocked:
    """Batches that measure how long a loop takes to iterate over them.

    Timing starts when the loop requests the first batch after the warm-up, and ends when it requests the last batch. The last
    step is not timed. Work outside this interval, such as making a model or opening files, is not timed. This work leaves the
    CPU's caches cold, so the first steps are slower. They are the warm-up. Fetching a batch costs no more than iterating
    over a plain list of batches. If a loop prefetches a batch, one fewer step is timed.
    """

    def __init__(self, batches: Sequence[Any], wait: Callable[[], None]) -> None:
        self.took: Took = (0, 0)
        self._batches, self._warm_up = batches, min(WARM_UP, len(batches) // 4)
        self._wait = wait

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        warm_up, timed = self._batches[: self._warm_up], islice(self._batches, self._warm_up, len(self) - 1)
        return chain(warm_up, self._start(), timed, self._stop(), self._batches[-1:])

    def _start(self) -> Iterator[Any]:
        self._wait()
        self._began = thread_time_ns(), perf_counter_ns()
        yield from ()

    def _stop(self) -> Iterator[Any]:
        self._wait()
        ended, steps = (thread_time_ns(), perf_counter_ns()), len(self) - 1 - self._warm_up
        self.took = (ended[0] - self._began[0]) / steps, (ended[1] - self._began[1]) / steps
        yield from ()


class NoOp(Callback):
    def on_iter_begin(self, run: Any) -> None: ...

    def on_iter_end(self, run: Any) -> None: ...


@dataclass(slots=True)
class Job:
    """A training job: the batches, a function that makes the model, and a function that waits for the device."""

    make: Make
    batches: Sequence[Any]
    wait: Callable[[], None] = field(default=lambda: None)
    precision: str = "32"

    def clocked(self) -> Clocked:
        """Return the batches as a Clocked object, which times one loop over them. Iterate over the object only once."""
        return Clocked(self.batches, self.wait)

    def bare(self) -> Took:
        """Train with a standard torch loop."""
        model, optimizer, criterion = self.make()
        device = next(model.parameters()).device.type
        batches = self.clocked()
        if self.precision == "bf16":
            for inputs, targets in batches:
                optimizer.zero_grad()
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
        else:
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
        return batches.took

    def under_runner(self, callbacks: Iterable[Any] = (), **options: Any) -> Took:
        """Train with a Runner. With `extra_callbacks=[], monitors=[]`, the Runner has no default callbacks or monitors."""
        model, optimizer, criterion = self.make()
        batches = self.clocked()
        options = {"device": next(model.parameters()).device.type, "precision": self.precision, **options}
        runner = Runner(model, optimizer, criterion, callbacks=callbacks, **options)
        runner.fit(batches, epochs=1)
        return batches.took


QUIET: dict[str, Any] = {"extra_callbacks": [], "monitors": []}


def measure(title: str, candidates: dict[str, Callable[[], Took]], *, rounds: int) -> tuple[Group, Group]:
    """Measure the candidates' CPU time and wall time per step.

    In each round, every candidate runs once, in random order. The two groups contain one value per candidate and round.
    """
    taken: dict[str, list[Took]] = {name: [] for name in candidates}
    for candidate in candidates.values():
        candidate()
    order, shuffle = list(candidates), random.Random(0).shuffle
    gc.collect()
    gc.freeze()  # later garbage collections do not scan the objects that exist now
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            gc.collect()
            taken[name].append(candidates[name]())
    gc.unfreeze()
    groups = []
    for position, clock in enumerate(("CPU time", "wall time")):
        group = Group(f"{title}, {clock} of a step")
        group.timings = {name: Timing([took[position] for took in values]) for name, values in taken.items()}
        groups.append(group)
    return groups[0], groups[1]
