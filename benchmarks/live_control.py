"""Live control: the time from a command to its answer, and the cost of live control while no commands are sent.

A run with steps of 10 ms trains in its own process and receives `set` commands at random times: first on an otherwise idle
machine, then while other processes keep every core busy. Run the benchmark with `make bench`.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from report import Figure, machine, print_table, versions, write
from rounds import Spread

STEP_SECONDS, COMMANDS, WATCHED_SECONDS = 0.01, 60, 20.0
IDLE, BUSY = "command to answer", "command to answer, all cores busy"
CPU, OPCODES = "CPU of the watcher per second", "opcodes per iteration, compared with control=False"
WATCHER = "hookpoint live control"


def train(workdir: Path) -> None:
    """Train with steps of 10 ms until the run is stopped. For each line on stdin, print the watcher's CPU seconds."""
    from hookpoint import Loop

    with Loop(workdir=workdir, extra_callbacks=[], monitors=[], log_every=50) as run:
        watcher = next(thread for thread in threading.enumerate() if thread.name == WATCHER)
        assert watcher.ident is not None
        clock = time.pthread_getcpuclockid(watcher.ident)

        def report() -> None:
            for _ in sys.stdin:
                print(time.clock_gettime(clock), flush=True)

        threading.Thread(target=report, daemon=True).start()
        print("training", flush=True)
        for _ in run.batches(iter(int, 1)):
            time.sleep(STEP_SECONDS)


@contextmanager
def training(folder: Path) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, "--train", str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "training\n"
            yield process
        finally:
            process.kill()


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def latencies(folder: Path, commands: int) -> list[float]:
    """Return the seconds from each command to its answer. Commands are sent at random times."""
    from hookpoint import control

    ctl, chance, seconds = control(folder), random.Random(0), []
    for number in range(commands):
        time.sleep(chance.uniform(0, 0.3))
        began = time.perf_counter()
        ctl.set({"log_every": 50 + number % 2})
        seconds.append(time.perf_counter() - began)
    return seconds


def watcher_milliseconds(process: subprocess.Popen[str], seconds: float) -> float:
    """Return how many milliseconds of CPU time the watcher uses per second while no commands are sent."""

    def cpu_seconds() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    before, began = cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds() - before) * 1000 / (time.monotonic() - began)


def opcodes(workdir: Path, *, control: bool, first: int = 20, last: int = 40) -> float:
    """Return the number of opcodes that hookpoint executes per iteration, on the training thread."""
    from hookpoint import Loop

    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode" and "hookpoint" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    with Loop(workdir=workdir, extra_callbacks=[], monitors=[], log_every=1000, control=control) as run:
        try:
            sys.settrace(trace)
            counts = [count for _ in run.batches(range(last + 10))]
        finally:
            sys.settrace(before)
    return (counts[last] - counts[first]) / (last - first)


def measure(commands: int, seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with training(folder / "run") as process:
            found[IDLE] = latencies(folder / "run", commands)
            found[CPU] = [watcher_milliseconds(process, seconds / 5) for _ in range(5)]
            with busy_cores():
                found[BUSY] = latencies(folder / "run", commands)
        found[OPCODES] = [opcodes(folder / "on", control=True) - opcodes(folder / "off", control=False)]
    return found


def figures_of(found: dict[str, list[float]]) -> list[Figure]:
    limits = {IDLE: ("s", 0.5, 3), BUSY: ("s", 2.0, 3), CPU: ("ms", 1.0, 2), OPCODES: ("", 0.0, 2)}
    return [Figure(name, unit, Spread.of(found[name]), limit, digits=digits) for name, (unit, limit, digits) in limits.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="send only a few commands, for rough figures in a few seconds")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    commands, seconds = (3, 0.5) if options.quick else (COMMANDS, WATCHED_SECONDS)
    load = os.getloadavg()[0]
    about: dict[str, Any] = {"versions": versions("hookpoint"), "machine": machine(), "commands": commands}
    # If other processes cause a high load, the "idle" figures do not come from an idle machine.
    about["load_before"] = round(load, 1)
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    figures = figures_of(measure(commands, seconds))
    title = f"{commands} commands, steps of {STEP_SECONDS * 1000:g} ms, load {load:.1f}"
    print_table(title, ["median", "interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        path = write("live-control", "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
