"""The cost of a step on two processes with a Runner, compared with a standard DistributedDataParallel loop.

Two processes on this machine train an MLP with layer sizes 256, 512, 512 and 10. Each process uses one thread and batches of 64
samples. The processes communicate over gloo. The script starts them: `python benchmarks/parallel.py`, or `make bench-parallel`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch
import torch.distributed as dist
from report import Figure, in_words, machine, print_table, versions, write
from rounds import Group
from steps import QUIET, Job, Took, measure
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hookpoint import DataParallel

BARE = "bare loop with DDP"
AGAIN = "bare loop with DDP again"
DEFAULTS = "Runner, default callbacks"
PROCESSES = 2


def make() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def make_replica() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    model, optimizer, criterion = make()
    return DistributedDataParallel(model), optimizer, criterion


def candidates(steps: int, workdir: str) -> dict[str, Callable[[], Took]]:
    torch.manual_seed(dist.get_rank())
    batches = [(torch.randn(64, 256), torch.randint(0, 10, (64,))) for _ in range(steps)]
    bare, ours = Job(make_replica, batches, dist.barrier), Job(make, batches, dist.barrier)
    options: dict[str, Any] = {"strategy": DataParallel()}
    return {
        BARE: bare.bare,
        AGAIN: bare.bare,
        "Runner, quiet": lambda: ours.under_runner(**QUIET, **options),
        DEFAULTS: lambda: ours.under_runner(workdir=_new(workdir), **options),
    }


def _new(workdir: str) -> str:
    """Create a folder on rank 0, and return its path on every rank."""
    made = [mkdtemp(dir=workdir) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return str(made[0])


def train(rounds: int, steps: int, workdir: str) -> None:
    """Run the measurement in one of the processes. The first rank reports the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu, wall = measure(f"{PROCESSES} processes", candidates(steps, workdir), rounds=rounds)
    if dist.get_rank() == 0:
        report(cpu, wall, rounds, steps)
    dist.destroy_process_group()


def report(cpu: Group, wall: Group, rounds: int, steps: int) -> None:
    rows = []
    for name in wall.timings:
        ratio = wall[name].over(wall[BARE])
        rows.append([name, in_words(wall[name], per=1e3), f"{ratio.median:.3f}", f"{ratio.low:.3f}-{ratio.high:.3f}"])
    print_table(wall.title, ["wall us (min)", "times bare", "95 %"], rows)
    limits = {DEFAULTS: 1.05}
    figures = [
        Figure(
            f"{clock}: {name}", "x", group[name].over(group[BARE]), limits.get(name) if clock == "wall" else None, "median", 3
        )
        for clock, group in (("wall", wall), ("CPU", cpu))
        for name in group.timings
        if name != BARE
    ]
    print_table("against the bare loop", ["", "95 %", "limit", ""], [figure.cells() for figure in figures])
    about = {"versions": versions("hookpoint", "torch"), "machine": machine(), "rounds": rounds, "steps": steps}
    print(f"\nwritten to {write('parallel', '', about, [cpu, wall], figures)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workdir", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if "RANK" in os.environ:
        train(given.rounds, given.steps, given.workdir)
        return
    with TemporaryDirectory() as workdir:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}", __file__]
        options = [f"--rounds={given.rounds}", f"--steps={given.steps}", f"--workdir={workdir}"]
        sys.exit(subprocess.run([*launch, *options], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode)


if __name__ == "__main__":
    main()
