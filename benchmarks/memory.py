"""Measure how much memory grows in a long run, and compare the peak memory of a run with that of a bare loop.

A bare loop is a PyTorch training loop without hookpoint. Growth is measured for resident memory and for the number of
Python objects. The first fifth of the run is the warm-up. Growth is the difference between the value at the end of the warm-up
and the maximum after it. Two peaks are measured. torch's allocator reports the exact peak of all tensors, in bytes. The
operating system reports the peak of the whole process. Needs Linux. Run the benchmark with `make bench`.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from report import Figure, machine, print_table, versions, write
from rounds import Group, Spread, Timing
from step_overhead import make
from steps import QUIET
from torch import nn
from torch.profiler import ProfilerActivity, profile

from hookpoint import Callback
from hookpoint.presets.runner import Runner

MEGABYTE = 1e6
WARM_UP = 0.2  # fraction of the steps
KINDS = ("bare", "quiet", "default")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """Return the peak resident memory of this process.

    `getrusage` cannot be used, because the peak that it reports may be the peak of the parent process.
    """
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


# Growth


class Watch(Callback):
    """Record the memory and the number of objects every `every` iterations."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.seen: list[tuple[int, int, int]] = []
        self._every = every

    def on_iter_end(self, run: Any) -> None:
        if run.iteration % self._every == 0:
            gc.collect()
            self.seen.append((run.iteration, resident_bytes(), len(gc.get_objects())))


class Endless:
    """A loader that yields the same few batches again and again, so that the data does not make memory grow."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._batches = [(torch.randn(32, 32), torch.randint(0, 10, (32,))) for _ in range(16)]

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Any]:
        for index in range(self._number):
            yield self._batches[index % len(self._batches)]


def grown(steps: int, epochs: int) -> list[tuple[int, int, int]]:
    """Train with the default callbacks, and return a list of (iteration, bytes, objects)."""
    watch = Watch(max(100, steps // 20))
    with TemporaryDirectory() as workdir, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        runner = Runner(*make(), callbacks=[watch], workdir=workdir)
        runner.fit(Endless(steps // epochs), epochs=epochs)
    return watch.seen


# Peaks


def make_big(width: int) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    """Make a model whose weights, gradients and activations take up most of the process's memory."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def train(kind: str, width: int) -> None:
    """Train for a few steps. The bare loop clears the gradients where Runner does, just before the backward pass."""
    model, optimizer, criterion = make_big(width)
    batches = [(torch.randn(width // 4, width), torch.randint(0, 10, (width // 4,))) for _ in range(4)] * 2
    if kind != "bare":
        options = {} if kind == "default" else QUIET
        with TemporaryDirectory() as workdir, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            Runner(model, optimizer, criterion, workdir=workdir, **options).fit(batches, epochs=1)
        return
    for inputs, targets in batches:
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def tensor_peak(kind: str, width: int) -> int:
    """Return the peak memory of all tensors, in bytes, as torch's allocator counts it.

    Call this only once per process. A second profile continues the count of the first, but does not subtract the memory that
    was freed between the two.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        train(kind, width)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]")


def process_peak(kind: str, width: int) -> int:
    train(kind, width)
    return peak_bytes()


# Each measurement runs in its own process, so that measurements do not affect each other


def apart(what: str, *arguments: Any) -> Any:
    command = [sys.executable, __file__, "--only", json.dumps([what, *arguments])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(said.splitlines()[-1])


def process_peaks(repetitions: int, width: int) -> Group:
    group = Group("peak resident memory of a process, bytes")
    group.timings = {kind: Timing() for kind in KINDS}
    order, shuffle = list(KINDS), random.Random(0).shuffle
    for _ in range(repetitions):
        shuffle(order)
        for kind in order:
            group[kind].rounds.append(apart("process_peak", kind, width))
    return group


def exactly(value: float) -> Spread:
    return Spread(value, value, value)


def figures_of(seen: list[list[int]], tensors: dict[str, int], processes: Group) -> list[Figure]:
    warm = [one for one in seen if one[0] >= seen[-1][0] * WARM_UP]
    # Use the maximum, even if the memory or the number of objects decreases again later.
    most_bytes, most_objects = (max(one[what] for one in warm) - warm[0][what] for what in (1, 2))
    bare = processes["bare"]
    return [
        Figure("resident memory grows by", "MB", exactly(most_bytes / MEGABYTE), 2, digits=3),
        Figure("objects grow by", "", exactly(most_objects), digits=0),
        Figure("peak of tensors: Runner, quiet / bare", "x", exactly(tensors["quiet"] / tensors["bare"]), 1.01, digits=4),
        Figure("peak of tensors: Runner, default / bare", "x", exactly(tensors["default"] / tensors["bare"]), 1.01, digits=4),
        Figure("peak of the process: Runner, quiet / bare", "x", processes["quiet"].over(bare), 1.01, "low", 4),
        Figure("peak of the process: Runner, default / bare", "x", processes["default"].over(bare), digits=4),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps, small model: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--only", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("hookpoint").setLevel(logging.CRITICAL)
    if options.only:
        what, *arguments = options.only
        print(json.dumps({"grown": grown, "tensor_peak": tensor_peak, "process_peak": process_peak}[what](*arguments)))
        return
    if sys.platform != "linux":
        print("this benchmark needs Linux: it reads memory from /proc", file=sys.stderr)
        return

    steps, epochs, repetitions, width = (400, 2, 1, 64) if options.quick else (100_000, 4, 9, 2048)
    about: dict[str, Any] = {"versions": versions("hookpoint", "torch", "tensorboard"), "machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    tensors = {kind: apart("tensor_peak", kind, width) for kind in KINDS}
    processes = process_peaks(repetitions, width)
    seen = apart("grown", steps, epochs)

    rows = [[f"{step}", f"{size / MEGABYTE:.2f}", f"{objects}"] for step, size, objects in seen]
    print_table(f"{steps} tiny steps with default callbacks, after step", ["resident MB", "objects"], rows)
    rows = [[kind, f"{tensors[kind] / MEGABYTE:.2f}", f"{processes[kind].spread.median / MEGABYTE:.1f}"] for kind in KINDS]
    print_table(f"peak with an MLP of width {width}, MB", ["tensors", "process"], rows)
    figures = figures_of(seen, tensors, processes)
    print_table("limits", ["figure", "95 % interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        in_bytes = {"tensors": tensors, "processes": {kind: processes[kind].rounds for kind in KINDS}}
        about |= {"steps": steps, "steps_bytes_objects": seen, "peaks_bytes": in_bytes}
        path = write("memory", "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
