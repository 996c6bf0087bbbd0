"""Training steps timed side by side: a bare torch loop and the same steps under a Runner, in turns, in one process."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from rounds import Group, Timing
from torch import nn

from hookpoint import Callback
from hookpoint.presets.runner import Runner

Make = Callable[[], tuple[nn.Module, torch.optim.Optimizer, nn.Module]]
Took = tuple[int, int]  # nanoseconds of this thread's CPU time, and of the wall clock


class Clock(Callback):
    """Time the training pass from its begin to its end, the model's set-up and the run's left out."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self.took: Took = (0, 0)
        self._wait = wait

    def on_train_epoch_begin(self) -> None:
        self._wait()
        self._began = thread_time_ns(), perf_counter_ns()

    def on_train_epoch_end(self) -> None:
        self._wait()
        self.took = thread_time_ns() - self._began[0], perf_counter_ns() - self._began[1]


class NoOp(Callback):
    def on_iter_begin(self, run: Any) -> None: ...

    def on_iter_end(self, run: Any) -> None: ...


@dataclass(slots=True)
class Job:
    """What is trained: how to make it, on which batches, and how to wait for the device."""

    make: Make
    batches: Sequence[Any]
    wait: Callable[[], None] = field(default=lambda: None)
    precision: str = "32"

    def bare(self) -> Took:
        """Train with the loop that everyone writes."""
        model, optimizer, criterion = self.make()
        device = next(model.parameters()).device.type
        bf16 = self.precision == "bf16"
        self.wait()
        began = thread_time_ns(), perf_counter_ns()
        if bf16:
            for inputs, targets in self.batches:
                optimizer.zero_grad()
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
        else:
            for inputs, targets in self.batches:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
        self.wait()
        return thread_time_ns() - began[0], perf_counter_ns() - began[1]

    def under_runner(self, callbacks: Iterable[Any] = (), **options: Any) -> Took:
        """Train the same with a Runner; `extra_callbacks=[], monitors=[]` makes it a quiet one."""
        model, optimizer, criterion = self.make()
        clock = Clock(self.wait)
        runner = Runner(model, optimizer, criterion, callbacks=[clock, *callbacks], precision=self.precision, **options)
        runner.fit(self.batches, epochs=1)
        return clock.took


QUIET: dict[str, Any] = {"extra_callbacks": [], "monitors": []}


def measure(title: str, candidates: dict[str, Callable[[], Took]], *, rounds: int, steps: int) -> tuple[Group, Group]:
    """Return the candidates' CPU and wall times per step, one value per round, measured in turns."""
    taken: dict[str, list[Took]] = {name: [] for name in candidates}
    for candidate in candidates.values():
        candidate()
    order, shuffle = list(candidates), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            gc.collect()
            taken[name].append(candidates[name]())
    groups = []
    for position, clock in enumerate(("CPU time", "wall time")):
        group = Group(f"{title}, {clock} of a step")
        group.timings = {name: Timing([took[position] / steps for took in values]) for name, values in taken.items()}
        groups.append(group)
    return groups[0], groups[1]
