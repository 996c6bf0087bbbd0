"""Measure how much time each part of hookpoint's `Loop` adds to a training step.

The benchmark times several versions of the same training loop: first without hookpoint, then with more and more parts of it.
The training loop is the one in step_overhead.py. It runs torch kernels, which evict the code of the Python interpreter
from the CPU's caches. Each part of hookpoint therefore takes several times as long as it would in a loop without torch kernels,
so its cost must be measured in a real training loop. Only torch is needed:

    PYTHONPATH=src taskset -c 3 python3 benchmarks/own_loop.py

Pinning the process to one core makes a step a fifth faster and reduces the differences between rounds.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from report import RESULTS, Figure, machine, print_table, versions, write
from rounds import Group, Spread
from step_overhead import AGAIN, BARE, LOGS, job_of, own_loop, own_loop_that_logs, print_group, unseen
from steps import QUIET, Job, Took, measure

from hookpoint.core.loop.loop import Loop as CoreLoop
from hookpoint.presets.loop import Loop

ITEM = "bare loop with loss.item()"
CORE, CORE_LOGS, WORKDIR = "core Loop", "core Loop with run.log", "Loop with a workdir, no defaults, run.log"
# For each part: the row of the loop without this part, and the row of the loop with it.
PARTS = {
    "the noise: the same loop twice": (BARE, AGAIN),
    "reading the loss, as every loop that logs it does": (BARE, ITEM),
    "run.batches": (BARE, CORE),
    "run.log, with the reading": (CORE, CORE_LOGS),
    "the public Loop with a workdir": (CORE_LOGS, WORKDIR),
    "default callbacks and monitors": (WORKDIR, LOGS),
    "everything": (BARE, LOGS),
}


def bare_with_item(job: Job) -> Took:
    model, optimizer, criterion = job.make()
    batches, losses = job.clocked(), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return batches.took


def candidates(job: Job, workdir: str) -> dict[str, Callable[[], Took]]:
    return {
        BARE: job.bare,
        AGAIN: job.bare,
        ITEM: lambda: bare_with_item(job),
        CORE: lambda: own_loop(job, CoreLoop()),
        CORE_LOGS: lambda: own_loop_that_logs(job, CoreLoop()),
        WORKDIR: lambda: own_loop_that_logs(job, Loop(workdir=workdir, **QUIET)),
        LOGS: lambda: own_loop_that_logs(job, Loop(workdir=workdir)),
    }


def parts_of(cpu: Group) -> list[Figure]:
    """Return the CPU time that each part adds to a step, in microseconds."""
    added = {part: cpu[after].beyond(cpu[before]) for part, (before, after) in PARTS.items()}
    return [Figure(part, "us", Spread(*(value / 1e3 for value in (m.median, m.low, m.high)))) for part, m in added.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run a few short rounds: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    rounds, steps = (3, 60) if options.quick else (151, 200)
    torch.set_num_threads(1)
    logging.getLogger("hookpoint").setLevel(logging.CRITICAL)
    job = job_of(steps)
    with TemporaryDirectory() as workdir, unseen():
        cpu, wall = measure("own loop", candidates(job, workdir), rounds=rounds)
    print_group(f"a training step, {rounds} rounds of {steps} steps", cpu, wall)
    figures = parts_of(cpu)
    print_table("what each part adds to a step", ["CPU time", "95 %"], [figure.cells()[:3] for figure in figures])
    if not options.no_write:
        about: dict[str, Any] = {"versions": versions("hookpoint", "torch"), "machine": machine()}
        print(f"\nwrote {write('own-loop', '', about, [cpu, wall], figures, folder=options.results)}")


if __name__ == "__main__":
    sys.exit(main())
