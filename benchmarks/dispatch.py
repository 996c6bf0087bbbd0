"""The cost of a point, compared with a bare loop over bound methods and, if installed, with pluggy, blinker and ignite.

Run the benchmark with `make bench`, or with `make bench-peers` to include ignite.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

from report import Figure, in_words, machine, print_table, versions, write
from rounds import Effort, Group, Sample, Spread, Timing

from hookpoint import Callback, Every, Hooks, LambdaCallback, Run, guard, on
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.services import machine_of

THOROUGH = Effort(rounds=1000, nanoseconds=400_000, interpreters=60)
QUICK = Effort(rounds=15, nanoseconds=150_000, interpreters=3)

COUNTS = (0, 1, 3, 10)
BARE = "bare loop over bound methods"
EMPTY = "empty method call"
END = ("on_train_iter_end", "on_iter_end")  # a pass combines these points into one call


class Listener(Callback):
    def on_iter_end(self, run: Run) -> None: ...


class ByNameListener(Callback):
    def on_iter_end(self, batch: Any, loss: Any) -> None: ...


class Empty:
    def on_iter_end(self, run: Run) -> None: ...


class Array:
    """An element of a batch. It has a shape, but no data."""

    shape = (32, 8)


PAIR = (Array(), Array())


@contextmanager
def iteration() -> Iterator[Run]:
    """Yield a run in the first iteration of a training pass."""
    with Loop() as run:
        batches = run.batches([PAIR, PAIR])
        next(batches)
        run.loss = 0.5
        yield run


# One point


def of_handlers(count: int, effort: Effort) -> Group:
    group = Group(f"one point, {count} handlers")
    listeners = [Listener() for _ in range(count)]
    methods = [listener.on_iter_end for listener in listeners]
    hooks = Hooks(listeners)
    by_name = Hooks([ByNameListener() for _ in range(count)])
    with iteration() as run:
        group.add(BARE, "for method in methods: method(run)", methods=methods, run=run)
        group.add("the bare loop again", "for method in methods: method(run)", methods=methods, run=run)
        call = "if call is not None: call(run)"
        group.add("in the loop, run-only", call, call=hooks.dispatch(*END, mode="train"), run=run)
        group.add("in the loop, by name", call, call=by_name.dispatch(*END, mode="train"), run=run)
        group.add("hooks.fire(name, run), which times handlers", "hooks.fire('on_iter_end', run)", hooks=hooks, run=run)
        for name, peer in PEERS.items():
            if find_spec(name):
                statement, names = peer(methods)
                group.add(name, statement, run=run, **names)
        return group.measure(effort)


def pluggy_call(methods: list[Any]) -> tuple[str, dict[str, Any]]:
    import pluggy

    class Specs:
        @pluggy.HookspecMarker("bench")
        def on_iter_end(self, run: Any) -> None: ...

    class Plugin:
        @pluggy.HookimplMarker("bench")
        def on_iter_end(self, run: Any) -> None: ...

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specs)
    for _ in methods:
        manager.register(Plugin())
    return "hook.on_iter_end(run=run)", {"hook": manager.hook}


def blinker_call(methods: list[Any]) -> tuple[str, dict[str, Any]]:
    import blinker

    signal = blinker.Signal()
    for method in methods:
        signal.connect(method)
    return "signal.send(run)", {"signal": signal}


def ignite_call(methods: list[Any]) -> tuple[str, dict[str, Any]]:
    from ignite.engine import Events

    return "engine.fire_event(event)", {"engine": ignite_engine(methods), "event": Events.ITERATION_COMPLETED}


def ignite_engine(methods: list[Any]) -> Any:
    from ignite.engine import Engine, Events

    engine = Engine(lambda engine, batch: None)
    for method in methods:
        engine.add_event_handler(Events.ITERATION_COMPLETED, method)
    return engine


PEERS: dict[str, Callable[[list[Any]], tuple[str, dict[str, Any]]]] = {
    "pluggy": pluggy_call,
    "blinker": blinker_call,
    "ignite": ignite_call,
}


def of_unheard(effort: Effort) -> Group:
    group = Group("a point nobody listens to")
    hooks = Hooks([LambdaCallback(on_epoch_end=lambda run: None)])
    with iteration() as run:
        group.add(EMPTY, "empty.on_iter_end(run)", empty=Empty(), run=run)
        one = machine_of(run).scopes.passes[-1]
        group.add("in the loop", "if one.end is not None: one.end(run)", one=one, run=run)  # the same check as in Machine
        group.add("hooks.fire(name, run)", "hooks.fire('on_iter_end', run)", hooks=hooks, run=run)
        group.add("run.fire(name)", "run.fire('on_iter_end')", run=run)
        return group.measure(effort)


def of_schedules(effort: Effort) -> Group:
    @on("on_iter_end", when=Every(steps=10**9))
    def by_steps(run: Run) -> None: ...

    @on("on_iter_end", when=Every(hours=10**6))
    def by_hours(run: Run) -> None: ...

    class Trigger(Callback):
        def on_trigger(self, run: Run) -> None: ...

    group = Group("a schedule that is not due")
    others: dict[str, list[Any]] = {
        "one handler": [],
        "and one with Every(steps=...)": [by_steps],
        "and one with Every(hours=...)": [by_hours],
        "and a trigger with Every(steps=...)": [Trigger().when(Every(steps=10**9))],
        "and a trigger with Every(hours=...)": [Trigger().when(Every(hours=10**6))],
    }
    with iteration() as run:
        for name, other in others.items():
            group.add(name, "call(run)", call=Hooks([Listener(), *other]).dispatch(*END, mode="train"), run=run)
        return group.measure(effort)


# Around functions, iterations and values


def of_guard(effort: Effort) -> Group:
    def bare(words: str, *, callbacks: Any = None) -> None: ...

    guarded = guard("on_bench")(bare)
    hooks = Hooks([LambdaCallback(on_bench_end=lambda result: None)])
    group = Group("a guarded function")
    group.add("the bare function", "function('a')", function=bare)
    group.add("guarded, without callbacks", "function('a')", function=guarded)
    group.add("guarded, with a handler at its end", "function('a', callbacks=hooks)", function=guarded, hooks=hooks)
    return group.measure(effort)


def of_iteration(effort: Effort) -> Group:
    group = Group("a whole iteration")
    group.add_sample("bare for", bare_for)
    group.add_sample("Loop, no callbacks", own_loop(0))
    group.add_sample("Loop, 10 no-op callbacks", own_loop(10))
    if find_spec("ignite"):
        group.add_sample("ignite, no handlers", ignite_run(0))
        group.add_sample("ignite, 10 no-op handlers", ignite_run(10))
    return group.measure(effort.in_fewer_rounds(2))


class Batches:
    """Batches that measure how long a loop takes to iterate over them.

    The first and the last iteration are not timed, because they include the start and the end of the pass.
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


def bare_for(times: int) -> float:
    batches = Batches(times)
    for _ in batches:
        pass
    return batches.taken


def own_loop(count: int) -> Sample:
    listeners = [Listener() for _ in range(count)]

    def sample(times: int) -> float:
        batches = Batches(times)
        with Loop(listeners) as run:
            for _ in run.batches(batches):
                pass
        return batches.taken

    return sample


def ignite_run(count: int) -> Sample:
    engine = ignite_engine([Listener().on_iter_end for _ in range(count)])

    def sample(times: int) -> float:
        batches = Batches(times)
        engine.run(batches, max_epochs=1)
        return batches.taken

    return sample


def of_log(effort: Effort) -> Group:
    group = Group("a logged value")
    with iteration() as run:
        group.add(EMPTY, "empty.on_iter_end(run)", empty=Empty(), run=run)
        group.add("run.log(loss=float)", "run.log(loss=0.5)", run=run)
        return group.measure(effort)


# Importing


def of_import(effort: Effort) -> Group:
    """Time interpreters from start to exit. The first run of each program is ignored, because it compiles the bytecode."""
    group = Group("a fresh interpreter")
    programs = {
        "empty": "",
        "import hookpoint": "import hookpoint",
        "from hookpoint import Callback, Loop": "from hookpoint import Callback, Loop",
    }
    group.timings = {name: Timing() for name in programs}
    with TemporaryDirectory() as bytecode:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(effort.interpreters + 1):
            for name, program in programs.items():
                began = perf_counter_ns()
                subprocess.run([sys.executable, "-c", program], env=environment, check=True)
                taken = perf_counter_ns() - began
                if number:
                    group[name].rounds.append(taken)
    return group


# Figures with a limit, and other figures


def promises(groups: dict[str, Group]) -> list[Figure]:
    ten, unheard, schedules, start = (groups[name] for name in ("10", "unheard", "schedules", "import"))
    one = schedules["one handler"]
    return [
        Figure("unheard point in the loop / empty method call", "x", unheard["in the loop"].over(unheard[EMPTY]), 1),
        Figure("hooks.fire(name), unheard / empty method call", "x", unheard["hooks.fire(name, run)"].over(unheard[EMPTY]), 3),
        Figure("10 handlers, run-only / bare loop", "x", ten["in the loop, run-only"].over(ten[BARE]), 1.35),
        Figure("10 handlers, by name / bare loop", "x", ten["in the loop, by name"].over(ten[BARE]), 2),
        Figure("schedule of steps, not due, adds", "ns", schedules["and one with Every(steps=...)"].beyond(one), 100),
        Figure("schedule of hours, not due, adds", "ns", schedules["and one with Every(hours=...)"].beyond(one), 200),
        Figure("import hookpoint adds", "ms", scaled(start["import hookpoint"].beyond(start["empty"]), 1e-6), 30),
    ]


def findings(groups: dict[str, Group]) -> list[Figure]:
    names = ("10", "unheard", "schedules", "guard", "iteration", "log", "import")
    ten, unheard, schedules, guarded, whole, log, start = (groups[name] for name in names)
    one, function, bare = schedules["one handler"], guarded["the bare function"], whole["bare for"]
    all_of_it = start["from hookpoint import Callback, Loop"].beyond(start["empty"])
    return [
        Figure("noise: bare loop / bare loop, 10 handlers", "x", ten["the bare loop again"].over(ten[BARE])),
        Figure("run.fire(name), unheard / empty method call", "x", unheard["run.fire(name)"].over(unheard[EMPTY])),
        Figure("trigger by steps, not due, adds", "ns", schedules["and a trigger with Every(steps=...)"].beyond(one)),
        Figure("trigger by hours, not due, adds", "ns", schedules["and a trigger with Every(hours=...)"].beyond(one)),
        Figure("guard without callbacks adds", "ns", guarded["guarded, without callbacks"].beyond(function)),
        Figure("Loop, no callbacks, adds per iteration", "us", scaled(whole["Loop, no callbacks"].beyond(bare), 1e-3)),
        Figure("Loop, 10 callbacks, adds per iteration", "us", scaled(whole["Loop, 10 no-op callbacks"].beyond(bare), 1e-3)),
        Figure("run.log(loss=float)", "ns", log["run.log(loss=float)"].spread),
        Figure("from hookpoint import Callback, Loop adds", "ms", scaled(all_of_it, 1e-6)),
    ]


def scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.low * factor, spread.high * factor)


def print_all(groups: dict[str, Group], promised: list[Figure], found: list[Figure]) -> None:
    by_count = [groups[str(count)] for count in COUNTS]
    print_table(
        "ns per fire, by handlers: median (minimum)",
        [str(count) for count in COUNTS],
        [[name, *(in_words(group[name]) for group in by_count)] for name in by_count[0].timings],
    )
    for key in ("unheard", "schedules", "guard", "iteration", "log"):
        rows = [[name, in_words(timing)] for name, timing in groups[key].timings.items()]
        print_table(f"{groups[key].title}, ns", ["median (min)"], rows)
    rows = [[name, in_words(timing, digits=1, per=1e6)] for name, timing in groups["import"].timings.items()]
    print_table("a fresh interpreter, ms", ["median (min)"], rows)
    print_table("limits", ["figure", "95 % interval", "at most", "verdict"], [figure.cells() for figure in promised])
    print_table("other figures", ["figure", "95 % interval"], [figure.cells()[:3] for figure in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run a few short rounds: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    options = parser.parse_args()
    effort = QUICK if options.quick else THOROUGH
    logging.getLogger("hookpoint").addHandler(logging.NullHandler())  # hides the warning that callbacks dominate an empty step

    about = {"versions": versions("hookpoint", "pluggy", "blinker", "pytorch-ignite"), "machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    print(", ".join(str(value) for value in about["machine"].values()))
    groups = {str(count): of_handlers(count, effort) for count in COUNTS}
    groups["unheard"] = of_unheard(effort)
    groups["schedules"] = of_schedules(effort)
    groups["guard"] = of_guard(effort)
    groups["iteration"] = of_iteration(effort)
    groups["log"] = of_log(effort)
    groups["import"] = of_import(effort)
    promised, found = promises(groups), findings(groups)
    print_all(groups, promised, found)
    if not options.no_write:
        suffix = "-ignite" if find_spec("ignite") else ""
        path = write("dispatch", suffix, about, groups.values(), [*promised, *found])
        print(f"\nwrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
