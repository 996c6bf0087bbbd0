"""The cost of a training step with a Runner, in your own loop and with other trainers, compared with a bare torch loop.

The model is an MLP 32-64-10, trained with batches of 32, SGD and one thread. It is small enough to make the overhead visible.
Run the benchmark with `make bench`, or with `make bench-peers` to include the other trainers. `--judged` measures only
validation, prediction and the training steps whose cost has an upper limit. It needs only torch:

    PYTHONPATH=src python3 benchmarks/step_overhead.py --judged
"""

from __future__ import annotations

import argparse
import logging
import os
import pty
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from evaluations import BARE_PRED, BARE_VAL, predictions, validations
from peers import PACKAGES, tried
from report import RESULTS, Figure, in_words, machine, print_table, versions, write
from rounds import Group, Spread
from steps import QUIET, Job, NoOp, Took, measure
from torch import nn

from hookpoint import Every
from hookpoint import callbacks as cb
from hookpoint.core.loop.loop import Loop as CoreLoop
from hookpoint.engine.step.optimizer_values import clear_gradients
from hookpoint.presets.loop import Loop

BARE = "bare loop"
AGAIN = "bare loop again"
CLEARS = "bare loop that sets .grad = None, as Runner does"
LONG = "Runner, default callbacks, long passes"
TERMINAL = "Runner, default callbacks, bar in a terminal"
LIST = "Runner, tensorpack's list, long passes"
HANGING = "Runner, default callbacks, notifiers that hang"
LOGS = "own loop in a Loop with run.log(loss=loss)"
LIMITS = {
    "Runner, quiet": 1.005,
    "Runner, ten no-op callbacks": 1.025,
    "Runner, default callbacks": 1.03,
    LOGS: 1.04,
    LONG: 1.05,
    TERMINAL: 1.05,
    LIST: 1.10,
    HANGING: 1.05,
}
OPTIONAL = {"tensorboard": "the default monitors write no event files", "rich": "there is no bar to draw in a terminal"}


def make() -> tuple[nn.Module, torch.optim.Optimizer, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()


def job_of(steps: int) -> Job:
    torch.manual_seed(0)
    return Job(make, [(torch.randn(32, 32), torch.randint(0, 10, (32,))) for _ in range(steps)])


def bare_with_none(job: Job) -> Took:
    """Train with the bare loop, but clear the gradients as Runner does: to None, after the forward pass."""
    model, optimizer, criterion = job.make()
    batches = job.clocked()
    for inputs, targets in batches:
        loss = criterion(model(inputs), targets)
        clear_gradients(optimizer)
        loss.backward()
        optimizer.step()
    return batches.took


def own_loop(job: Job, loop: Any) -> Took:
    """Train with `for` loops over `run.epochs` and `run.batches`. The loop body is the same as in the bare loop."""
    model, optimizer, criterion = job.make()
    batches = job.clocked()
    with loop as run:
        for _ in run.epochs(1):
            for inputs, targets in run.batches(batches):
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
    return batches.took


def own_loop_that_logs(job: Job, loop: Any) -> Took:
    model, optimizer, criterion = job.make()
    batches = job.clocked()
    with loop as run:
        for _ in run.epochs(1):
            for inputs, targets in run.batches(batches):
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                run.log(loss=loss)
                loss.backward()
                optimizer.step()
    return batches.took


def own(job: Job, workdir: str) -> dict[str, Callable[[], Took]]:
    return {
        BARE: job.bare,
        AGAIN: job.bare,
        CLEARS: lambda: bare_with_none(job),
        "Runner, quiet": lambda: job.under_runner(**QUIET),
        "Runner, ten no-op callbacks": lambda: job.under_runner([NoOp() for _ in range(10)], **QUIET),
        "Runner, default callbacks": lambda: job.under_runner(workdir=workdir),
        "own loop in a core Loop": lambda: own_loop(job, CoreLoop()),
        "own loop in a Loop with defaults": lambda: own_loop(job, Loop(workdir=workdir)),
        LOGS: lambda: own_loop_that_logs(job, Loop(workdir=workdir)),
    }


@contextmanager
def unseen() -> Iterator[None]:
    """Hide all output of the training runs. Progress bars behave as if they were written to a file."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def terminal() -> Iterator[None]:
    """Redirect stderr to a terminal that another process reads."""
    ours, theirs = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    known, os.environ["TERM"] = os.environ.get("TERM", ""), "xterm-256color"
    try:
        with open(theirs, "w") as stream, redirect_stderr(stream):
            yield
    finally:
        os.environ["TERM"] = known
        reader.wait()


def in_a_terminal(job: Job, workdir: str) -> Took:
    with terminal():
        return job.under_runner(workdir=workdir)


def with_list(job: Job, workdir: str) -> Took:
    """Train with all callbacks that tensorpack's guide lists for a ResNet. Their work at the end of the epoch is not timed."""
    callbacks = [
        cb.ModelSaver(),
        cb.MinSaver("val-error-top1"),
        cb.InferenceRunner(
            job.batches[:1],
            [cb.ClassificationError("wrong-top1", "val-error-top1"), cb.ClassificationError("wrong-top5", "val-error-top5")],
        ),
        cb.ScheduledHyperParamSetter("learning_rate", [(30, 1e-2), (60, 1e-3), (85, 1e-4), (95, 1e-5)]),
        cb.HumanHyperParamSetter("learning_rate"),
        cb.SendStat(["true", "{val-error-top1}"], "val-error-top1"),
        cb.GPUUtilizationTracker(),
        cb.InjectShell(shell="python"),
    ]
    with TemporaryDirectory(dir=workdir) as own_place:  # in a shared workdir, only the first run would train
        return job.under_runner(callbacks, workdir=own_place)


def with_hanging_notifiers(job: Job, workdir: str) -> Took:
    """Train with a notifier whose command sleeps for 30 s, and a monitor whose server accepts connections but never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        callbacks = [
            cb.SendStat(["sleep", "30"], "loss").when(Every(steps=50)),
            cb.RemoteMonitor(address, timeout_seconds=1),
        ]
        return job.under_runner(callbacks, workdir=workdir)


def figures_of(cpu: Group, wall: Group, against: dict[str, float], *, bare: str = BARE) -> list[Figure]:
    """Compare the CPU and wall times of each candidate with the bare loop. Return ratios, and differences in microseconds."""
    pairs = [(clock, group, name) for clock, group in (("CPU", cpu), ("wall", wall)) for name in group.timings if name != bare]
    times = [
        Figure(f"{c}: {name}", "x", group[name].over(group[bare]), against.get(name), digits=3) for c, group, name in pairs
    ]
    more = [(f"{clock}, beyond bare: {name}", group[name].beyond(group[bare])) for clock, group, name in pairs]
    return times + [Figure(name, "us", Spread(*(value / 1e3 for value in (m.median, m.low, m.high)))) for name, m in more]


def print_group(title: str, cpu: Group, wall: Group, *, bare: str = BARE) -> None:
    """Print the CPU time and the wall time per step. Compare both with the bare loop: as a ratio and as a difference."""
    rows = []
    for name in cpu.timings:
        cells = [name]
        for group in (cpu, wall):
            ratio, more = group[name].over(group[bare]), group[name].beyond(group[bare])
            cells += [
                in_words(group[name], digits=1, per=1e3),
                f"{ratio.median:.3f}",
                f"{ratio.low:.3f}-{ratio.high:.3f}",
                f"{more.median / 1e3:+.1f}",
            ]
        rows.append(cells)
    print_table(title, ["CPU us (min)", "times bare", "95 %", "us", "wall us (min)", "times bare", "95 %", "us"], rows)


def skipped() -> list[str]:
    """Return a line for each optional package that is not installed: its name, and how this affects the benchmark."""
    missing = [(name, why) for name, why in OPTIONAL.items() if find_spec(name) is None]
    return [f"{name} is not installed: {why}" for name, why in missing]


def judge(options: argparse.Namespace) -> tuple[list[Group], list[Figure]]:
    """Measure validation, prediction and the training steps whose cost has an upper limit."""
    job = job_of(options.steps)
    with TemporaryDirectory() as workdir, unseen():
        rows = {name: run for name, run in own(job, workdir).items() if name in LIMITS or name in (BARE, AGAIN, CLEARS)}
        training = measure("MLP 32-64-10", rows, rounds=options.rounds)
        validation = measure("validation", validations(job), rounds=options.rounds)
        prediction = measure("prediction", predictions(job), rounds=options.rounds)
    many = f"{options.rounds} rounds of {options.steps} steps"
    print_group(f"a training step, {many}", *training)
    print_group(f"a validation batch, {many}", *validation, bare=BARE_VAL)
    print_group(f"a prediction batch, {many}", *prediction, bare=BARE_PRED)
    figures = figures_of(*training, LIMITS)
    figures += figures_of(*validation, {}, bare=BARE_VAL) + figures_of(*prediction, {}, bare=BARE_PRED)
    return [*training, *validation, *prediction], figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run a few short rounds: takes seconds, gives rough figures")
    parser.add_argument("--no-write", action="store_true", help="do not write a file to benchmarks/results")
    parser.add_argument("--no-peers", action="store_true", help="leave out other trainers, even if they are installed")
    parser.add_argument("--judged", action="store_true", help="measure only validation, prediction and steps with a cost limit")
    parser.add_argument("--rounds", type=int, help="with --judged: number of rounds (default: 151)")
    parser.add_argument("--steps", type=int, help="with --judged: steps per round (default: 200)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result file")
    options = parser.parse_args()
    rounds, steps = (3, 60) if options.quick else (151, 200)
    options.rounds, options.steps = options.rounds or rounds, options.steps or steps
    long_rounds, long_steps = (2, 100) if options.quick else (31, 3000)
    peer_rounds, peer_steps = (2, 20) if options.quick else (15, 600)
    torch.set_num_threads(1)
    for name in ("hookpoint", "lightning", "transformers", "torchtnt", "ignite"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

    about: dict[str, Any] = {"versions": versions("hookpoint", "torch", *PACKAGES), "machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in about["versions"].items() if value))
    print(", ".join(str(value) for value in about["machine"].values()))
    print("".join(f"{line}\n" for line in skipped()), end="")
    works: dict[str, Callable[[], Took]] = {}
    fails: dict[str, str] = {}
    groups: list[Group] = []
    figures: list[Figure] = []

    if options.judged:
        groups, figures = judge(options)
        finish(options, "-judged", about, groups, figures)
        return
    with TemporaryDirectory() as workdir:
        with unseen():
            job, long_job, peer_job = (job_of(number) for number in (steps, long_steps, peer_steps))
            cpu, wall = measure("MLP 32-64-10", own(job, workdir), rounds=rounds)
            candidates = {
                BARE: long_job.bare,
                LONG: lambda: long_job.under_runner(workdir=workdir),
                TERMINAL: lambda: in_a_terminal(long_job, workdir),
                LIST: lambda: with_list(long_job, workdir),
                HANGING: lambda: with_hanging_notifiers(long_job, workdir),
            }
            in_long = measure("long passes", candidates, rounds=long_rounds)
        print_group(f"a training step, {rounds} rounds of {steps} steps", cpu, wall)
        print_group(f"the same, {long_rounds} rounds of {long_steps} steps", *in_long)
        groups += [cpu, wall, *in_long]
        figures += figures_of(cpu, wall, LIMITS) + figures_of(*in_long, LIMITS)
        if not options.no_peers:
            with unseen():
                works, fails = tried(peer_job)
                beside = measure("peers", {BARE: peer_job.bare, **works}, rounds=peer_rounds)
            if works:
                print_group(f"other trainers, {peer_rounds} rounds of {peer_steps} steps", *beside)
                groups += beside
                figures += figures_of(*beside, {})
            else:
                print("\nother trainers")
            for name, reason in fails.items():
                print(f"  {name:<48}  {reason}")

    finish(options, "-peers" if works else "", {**about, "failed": fails}, groups, figures)


def finish(options: argparse.Namespace, suffix: str, about: dict[str, Any], groups: list[Group], figures: list[Figure]) -> None:
    """Print whether each limit is met, and write all results to a file."""
    promised = [figure for figure in figures if figure.limit is not None]
    heads = ["figure", "95 % interval", "at most", "verdict"]
    print_table("limits, which apply to the median", heads, [figure.cells() for figure in promised])
    if not options.no_write:
        path = write("step-overhead", suffix, about, groups, figures, folder=options.results)
        print(f"\nwrote {path}")


if __name__ == "__main__":
    sys.exit(main())
