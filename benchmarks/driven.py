"""Measure the cost of an iteration in another library's trainer, and compare it with an iteration of your own loop.

In the tables, an iteration in another library's trainer is called a driven iteration. It includes an optimizer step. The
trainer reports when this step begins and when it ends. In this benchmark, your own loop has no optimizer, so each batch counts
as a step. No other loop that counts steps is cheaper, so this comparison is the strictest.

Run the benchmark with `make bench`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from report import Figure, in_words, machine, print_table, versions, write
from rounds import Effort, Group, Sample, Spread, Timing

from hookpoint import Callback, Run
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.host_driver import HostDriver
from hookpoint.core.loop.loop import Loop

THOROUGH = Effort(rounds=1000, nanoseconds=800_000, interpreters=0)
QUICK = Effort(rounds=15, nanoseconds=300_000, interpreters=0)
LIMIT = 0.5  # microseconds
COUNTS = {0: "no callbacks", 1: "one callback", 10: "ten callbacks"}
LOGGED = "one callback, a logged loss"


class Listener(Callback):
    def on_train_iter_end(self, run: Run) -> None: ...


class Array:
    """Stand in for a tensor in a batch. Only the shape is needed."""

    shape = (32, 8)


PAIR = (Array(), Array())


class Batches:
    """A loader that measures how long a loop takes to iterate over its batches.

    The first and the last iteration are not timed, because they include the work of starting and ending the pass.
    """

    taken = 0.0

    def __init__(self, times: int) -> None:
        self._times = times

    def __len__(self) -> int:
        return self._times + 2

    def __iter__(self) -> Iterator[Any]:
        yield PAIR
        began = perf_counter_ns()
        for _ in range(self._times):
            yield PAIR
        self.taken = perf_counter_ns() - began
        yield PAIR


def own_loop(count: int, *, logs: bool = False) -> Sample:
    listeners = [Listener() for _ in range(count)]

    def sample(times: int) -> float:
        batches = Batches(times)
        with Loop(listeners) as run:
            if logs:
                for _ in run.batches(batches):
                    run.log("loss", 0.5)
            else:
                for _ in run.batches(batches):
                    pass
        return batches.taken

    return sample


def driven(count: int, *, logs: bool = False) -> Sample:
    driver = HostDriver([Listener() for _ in range(count)], Host("a trainer"))

    def sample(times: int) -> float:
        batches = Batches(times)
        driver.start_run()
        driver.start_epoch()
        driver.start_pass("train", total=len(batches))
        if logs:
            for batch in batches:
                driver.start_iteration(batch)
                driver.start_step()
                driver.finish_step()
                driver.finish_iteration(loss=0.5)
        else:
            for batch in batches:
                driver.start_iteration(batch)
                driver.start_step()
                driver.finish_step()
                driver.finish_iteration()
        driver.finish_pass()
        driver.finish_epoch()
        driver.finish_run()
        return batches.taken

    return sample


def measured(effort: Effort) -> Group:
    group = Group("an iteration")
    for count, words in COUNTS.items():
        group.add_sample(f"your own loop, {words}", own_loop(count))
        group.add_sample(f"driven, {words}", driven(count))
    group.add_sample(f"your own loop, {LOGGED}", own_loop(1, logs=True))
    group.add_sample(f"driven, {LOGGED}", driven(1, logs=True))
    group.add_sample("your own loop, one callback, again", own_loop(1))
    return group.measure(effort)


def beyond(own: Timing, other: Timing) -> Spread:
    spread = own.beyond(other)
    return Spread(*(value / 1000 for value in (spread.median, spread.low, spread.high)))


def figures(group: Group) -> list[Figure]:
    found = []
    for words in (*COUNTS.values(), LOGGED):
        added = beyond(group[f"driven, {words}"], group[f"your own loop, {words}"])
        found.append(Figure(f"a driven iteration adds: {words}", "us", added, LIMIT))
    again = beyond(group["your own loop, one callback, again"], group["your own loop, one callback"])
    return [*found, Figure("noise: your own loop against itself", "us", again)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run a few short rounds: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--results", type=Path, help="folder for the result file")
    options = parser.parse_args()
    # The steps are empty, so callbacks take most of the time. This hides the warning about it.
    logging.getLogger("hookpoint").addHandler(logging.NullHandler())

    about = {"versions": versions("hookpoint"), "machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items()))
    print(", ".join(str(value) for value in about["machine"].values()))
    group = measured(QUICK if options.quick else THOROUGH)
    found = figures(group)
    print_table(f"{group.title}, ns", ["median (min)"], [[name, in_words(timing)] for name, timing in group.timings.items()])
    print_table("limits", ["figure", "95 % interval", "at most", "verdict"], [figure.cells() for figure in found])
    if not options.no_write:
        path = write("driven", "", about, [group], found, folder=options.results)
        print(f"\nwrote {path}")


if __name__ == "__main__":
    main()
