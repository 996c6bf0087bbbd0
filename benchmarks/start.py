"""How long a script takes before its first step: importing Loop and Runner, and starting the first fit.

The programs take turns, each time in a fresh interpreter. Each program prints the wall time and the CPU time of its measured
part, and the number of modules that this part imports. The first round is ignored, because it compiles the bytecode. Run the
benchmark with `make bench` or, if only torch is installed, with `PYTHONPATH=src python3 benchmarks/start.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from report import RESULTS, Figure, machine, print_table, versions, write
from rounds import Group, Spread, Timing

MILLISECOND = 1e6

# A program: {prepared} runs first, and only {measured} is measured.
MEASURED = """
import sys, time
{prepared}
modules, wall, cpu = len(sys.modules), time.perf_counter_ns(), time.process_time_ns()
{measured}
print(time.perf_counter_ns() - wall, time.process_time_ns() - cpu, len(sys.modules) - modules)
"""
MODEL = """
import torch
from torch import nn
from hookpoint import Runner
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(32, 32), torch.randint(0, 10, (32,)))]
"""
BARE = """
for inputs, targets in data:
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""
OWN_LOOP = """
with Loop() as run:
    for epoch in run.epochs(1):
        for batch in run.batches([1.0]):
            run.log(loss=batch)
"""

IMPORT_LOOP, FIRST_LOOP = "from hookpoint import Loop", "the first Loop of one batch, with defaults, without torch"
IMPORT_TORCH, IMPORT_RUNNER = "import torch", "from hookpoint import Runner, after import torch"
BARE_LOOP, FIRST_FIT = "a bare loop of one batch", "the first fit of one batch, with defaults"
PROGRAMS = {
    IMPORT_LOOP: ("", "from hookpoint import Loop"),
    FIRST_LOOP: ("from hookpoint import Loop", OWN_LOOP),
    IMPORT_TORCH: ("", "import torch"),
    IMPORT_RUNNER: ("import torch", "from hookpoint import Runner"),
    BARE_LOOP: (MODEL, BARE),
    FIRST_FIT: (MODEL, "Runner(model, optimizer, criterion, device='cpu').fit(data, epochs=1)"),
}


def started(prepared: str, measured: str) -> tuple[float, float, int]:
    """Run a program in a fresh interpreter.

    Return the wall time and the CPU time of the measured part, in nanoseconds, and the number of modules that it imports.
    """
    program = MEASURED.format(prepared=prepared, measured=measured)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{measured.strip()} failed:\n{done.stderr}")
    wall, cpu, modules = map(int, done.stdout.splitlines()[-1].split())
    return wall, cpu, modules


def measure(rounds: int, programs: dict[str, tuple[str, str]]) -> tuple[Group, Group, dict[str, int]]:
    """Return the wall time and the CPU time of each program, and the number of modules that it imports."""
    wall, cpu = Group("wall time"), Group("CPU time")
    wall.timings, cpu.timings = ({name: Timing() for name in programs} for _ in range(2))
    modules = {}
    began = perf_counter_ns()
    for number in range(rounds + 1):
        for name, program in programs.items():
            wall_ns, cpu_ns, modules[name] = started(*program)
            if number:
                wall[name].rounds.append(wall_ns)
                cpu[name].rounds.append(cpu_ns)
        if number % 5 == 0:
            print(f"round {number} of {rounds}, {(perf_counter_ns() - began) / 1e9:.0f} s", file=sys.stderr, flush=True)
    return wall, cpu, modules


def figures_of(wall: Group, cpu: Group) -> list[Figure]:
    """Return each figure twice: as wall time and as CPU time.

    Other processes on the machine affect the CPU time less than the wall time.
    """
    figures = []
    for kind, group in (("wall", wall), ("CPU", cpu)):
        loop, runner, fit = group[IMPORT_LOOP].spread, group[IMPORT_RUNNER].spread, group[FIRST_FIT].beyond(group[BARE_LOOP])
        for name, spread, limit in (
            (IMPORT_LOOP, loop, 60),
            (IMPORT_RUNNER, runner, 100),
            (f"{FIRST_FIT}, beyond the bare loop", fit, 150),
        ):
            in_ms = Spread(*(value / MILLISECOND for value in (spread.median, spread.low, spread.high)))
            figures.append(Figure(f"{kind}: {name}", "ms", in_ms, limit))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21, help="number of interpreters per program (default: 21)")
    parser.add_argument("--quick", action="store_true", help="run three rounds: gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a result file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    wall, cpu, modules = measure(rounds, PROGRAMS)
    about: dict[str, Any] = {
        "versions": versions("hookpoint", "torch", "numpy", "safetensors", "tensorboard", "rich"),
        "machine": machine(),
        "rounds": rounds,
        "modules": modules,
    }
    for group in (wall, cpu):
        rows = [
            [name, *(f"{value / MILLISECOND:.1f} ms" for value in (one.spread.median, one.minimum)), str(modules[name])]
            for name, one in group.timings.items()
        ]
        print_table(group.title, ["median", "minimum", "new modules"], rows)
    figures = figures_of(wall, cpu)
    print_table("figures", ["median", "interval", "limit", ""], [figure.cells() for figure in figures])
    if not options.no_write and not options.quick:
        print(f"\nwritten to {write('start', '', about, [wall, cpu], figures, folder=options.results)}")


if __name__ == "__main__":
    main()
