"""Measure the time and peak memory that hookpoint's commands need for a scalars.jsonl of ten million lines.

Each command runs in its own process. The benchmark also measures a run that resumes after the last line of scalars.jsonl was
only partly written. The figures include the start of Python. CPU time includes only the measured process. Wall time also
depends on other programs that run on the machine. Needs Linux. Run the benchmark with `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from report import Figure, machine, print_table, versions, write
from rounds import Spread

MEGABYTE = 1e6
COMMANDS = {
    "show": ["show", "RUN"],
    "runs": ["runs", "FOLDER"],
    "plot": ["plot", "RUN", "-o", "FOLDER/out.png"],
    "plot --terminal": ["plot", "RUN", "--terminal"],
    "export to CSV": ["export", "RUN", "-o", "FOLDER/out.csv"],
    "export to JSON lines": ["export", "RUN", "-o", "FOLDER/out.jsonl"],
}
RESUME = "resume with a torn line"
LIMITS = {"show": (1.0, None), "runs": (1.0, None), "plot": (None, 100), "plot --terminal": (None, 100), RESUME: (None, 100)}


def write_scalars(path: Path, lines: int) -> None:
    """Write one record per step, with three values. Every record has epoch 0, so that a resumed run keeps it."""
    values = random.Random(0)
    with open(path, "a") as file:
        for step in range(1, lines + 1):
            clocks = f'"step": {step}, "iteration": {step}, "epoch": 0, "time": {1731664800 + step / 100:.3f}, "at": "step"'
            file.write(f'{{{clocks}, "loss": {values.random()!r}, "accuracy": {values.random()!r}, "learning_rate": 0.001}}\n')


def resume(workdir: str, epochs: int, lines: int) -> None:
    """Train an epoch of two steps, or resume and train another epoch. Write the long file in the first epoch."""
    from hookpoint import callbacks as cb
    from hookpoint.presets.loop import Loop

    with Loop([cb.ModelSaver()], extra_callbacks=[], monitors=[cb.JSONWriter()], workdir=workdir, log_every=0) as run:
        for _ in run.epochs(epochs):
            for batch in run.batches([1.0, 2.0]):
                run.log(loss=batch)
                if lines and run.iteration == 1:
                    write_scalars(Path(workdir) / "scalars.jsonl", lines)


def measured(command: list[str]) -> dict[str, float]:
    """Run a command in a process. Return its CPU time, wall time and peak memory."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    wall = time.perf_counter() - began
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall, "peak_bytes": usage.ru_maxrss * 1024}


def measure(folder: Path, lines: int) -> dict[str, dict[str, float]]:
    """Return the time and memory that each command takes with a file of this many lines."""
    run = folder / "runs" / "mine"
    own = [sys.executable, __file__, "--only"]
    subprocess.run([*own, json.dumps([str(run), 1, lines])], check=True, stderr=subprocess.DEVNULL)
    (run / "run.json").rename(folder / "run.json")  # so that commands do not read the best value from run.json
    found = {}
    for name, arguments in COMMANDS.items():
        places = [one.replace("RUN", str(run)).replace("FOLDER", str(folder)) for one in arguments]
        found[name] = measured([sys.executable, "-m", "hookpoint", *places])
        for path in folder.glob("out.*"):
            path.unlink()
    (folder / "run.json").rename(run / "run.json")
    with open(run / "scalars.jsonl", "a") as file:
        file.write('{"step": 3, "itera')
    found[RESUME] = measured([*own, json.dumps([str(run), 2, 0])])
    return found


def figures_of(found: dict[str, dict[str, float]]) -> list[Figure]:
    figures = []
    for name, one in found.items():
        seconds, megabytes = LIMITS.get(name, (None, None))
        for what, unit, value, limit in (
            ("CPU time", "s", one["cpu_s"], seconds),
            ("wall time", "s", one["wall_s"], None),
            ("peak memory", "MB", one["peak_bytes"] / MEGABYTE, megabytes),
        ):
            figures.append(Figure(f"{name}: {what}", unit, Spread(value, value, value), limit, digits=2))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000, help="lines in the file; ten million take 1.7 GB")
    parser.add_argument("--quick", action="store_true", help="use 20,000 lines: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--only", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        resume(*options.only)
        return
    if sys.platform != "linux":
        print("this benchmark needs Linux: on other systems, the peak memory is not in kilobytes", file=sys.stderr)
        return
    lines = 20_000 if options.quick else options.lines
    about: dict[str, Any] = {"versions": versions("hookpoint", "matplotlib"), "machine": machine(), "lines": lines}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    with TemporaryDirectory() as folder:
        found = measure(Path(folder), lines)
    figures = figures_of(found)
    print_table(f"{lines} lines", ["figure", "interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        path = write("long-files", "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
