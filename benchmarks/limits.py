"""Many callbacks and many metrics: the time to compile 1,000 callbacks, and the time and memory to log 100,000 names.

Each measurement runs in its own process. Run the benchmark with `make bench`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import subprocess
import sys
import time
import tracemalloc
from typing import Any

from report import Figure, machine, print_table, versions, write
from rounds import Spread

CALLBACKS, NAMES, STEPS = 1_000, 100_000, 3
COMPILE, TWICE, LOG, MEMORY = "compile", "compile twice as many / compile", "log", "log: memory that stays"


def compile_seconds(number: int) -> float:
    """Return the seconds that it takes to compile this many callbacks.

    The callbacks form pairs. In each pair, the first callback reads a metric that the second one writes.
    """
    from hookpoint import Callback, Hooks

    class Listens(Callback):
        def on_train_iter_end(self, run: Any) -> None: ...

    def made(one: int) -> Callback:
        declared = {"writes": (f"x{one // 2}",)} if one % 2 else {"reads": (f"x{one // 2}",)}
        return type(f"Listens{one}", (Listens,), declared)()

    callbacks = [made(one) for one in range(number)]
    gc.disable()
    began = time.process_time()
    Hooks(callbacks)
    return time.process_time() - began


def log_names(names: int, *, traced: bool) -> float:
    """Log this many metrics in each of a few steps, and return the time in seconds.

    With `traced`, return the number of bytes that are still allocated at the end instead.
    """
    from hookpoint import Loop

    values = {f"metric {one}": 1.0 for one in range(names)}
    if traced:
        tracemalloc.start()
    began = time.process_time()
    with Loop(extra_callbacks=[], monitors=[], log_every=1) as run:
        for _ in run.batches(range(STEPS)):
            run.log(values)
    return tracemalloc.get_traced_memory()[0] if traced else time.process_time() - began


def in_process(*words: object) -> float:
    """Run this script in a new process with `--only` and these arguments, and return the number that it prints."""
    command = [sys.executable, __file__, "--only", *map(str, words)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(callbacks: int, names: int, rounds: int) -> dict[str, list[float]]:
    """Repeat all measurements `rounds` times, and return a list of values for each measurement."""
    found: dict[str, list[float]] = {COMPILE: [], TWICE: [], LOG: [], MEMORY: []}
    for _ in range(rounds):
        once, twice = in_process("compile", callbacks), in_process("compile", 2 * callbacks)
        found[COMPILE].append(once)
        found[TWICE].append(twice / once)
        found[LOG].append(in_process("log", names))
        found[MEMORY].append(in_process("memory", names) / 1e6)
    return found


def figures_of(found: dict[str, list[float]]) -> list[Figure]:
    units = {COMPILE: ("s", 1.0), TWICE: ("x", 3.0), LOG: ("s", None), MEMORY: ("MB", 50.0)}
    return [
        Figure(
            name, unit, Spread(sorted(found[name])[len(found[name]) // 2], min(found[name]), max(found[name])), limit, digits=2
        )
        for name, (unit, limit) in units.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure only 1%% of the callbacks and names: fast but imprecise")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        what, number = options.only[0], int(options.only[1])
        logging.getLogger("hookpoint").setLevel(logging.ERROR)
        print(compile_seconds(number) if what == "compile" else log_names(number, traced=what == "memory"))
        return
    callbacks, names, rounds = (10, 1_000, 1) if options.quick else (CALLBACKS, NAMES, 5)
    about: dict[str, Any] = {"versions": versions("hookpoint"), "machine": machine(), "callbacks": callbacks, "names": names}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    figures = figures_of(measure(callbacks, names, rounds))
    title = f"{callbacks} callbacks; {names} names in {STEPS} steps"
    print_table(title, ["median", "interval", "at most", "verdict"], [figure.cells() for figure in figures])
    if not options.no_write:
        path = write("limits", "", about, [], figures)
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
