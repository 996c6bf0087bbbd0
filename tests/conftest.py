"""Settings for all tests, shared fixtures, and a summary of what the fault tests counted."""

from __future__ import annotations

import copy
import gc
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from runpy import run_path
from tempfile import mkdtemp

import pytest
from hypothesis import settings

import hookpoint
from hookpoint import callbacks as cb
from hookpoint.core.checkpoint.store import Checkpoint, Kept, Saved
from hookpoint.core.loop.loop import Loop

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tensors here are tiny: more threads only make the workers wait for each other

# The same examples each time, so that a change that passes once passes again. HYPOTHESIS_PROFILE=search tries others.
settings.register_profile("quick", derandomize=True, max_examples=10)
settings.register_profile("all", derandomize=True, max_examples=100)
settings.register_profile("search", derandomize=False, max_examples=100)

QUICK = "not slow"  # the -m of the default suite, in pyproject.toml

MEMORY = Path("/dev/shm")  # tests write thousands of checkpoints, and syncing each to a disk takes half of their time
MEMORY_BYTES = 2 * 2**30


def pytest_configure(config):
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick" if config.option.markexpr == QUICK else "all"))
    if config.option.basetemp is None and not hasattr(config, "workerinput") and _has_room(MEMORY):
        config.option.basetemp = mkdtemp(prefix="hookpoint-tests-", dir=MEMORY)
        config.add_cleanup(lambda: shutil.rmtree(config.option.basetemp, ignore_errors=True))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells do for background processes
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Freezing())
    config.pluginmanager.register(Propagating())
    if not hasattr(config, "workerinput"):
        os.environ["GIT_DIR"] = _empty_repository(
            config
        )  # every run asks git for the revision, and git would read all files here


def pytest_xdist_auto_num_workers():
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else None  # a quarter of the time is waiting


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items):
    """Mark the test cases that `thin` leaves out as slow."""
    cases = {}
    for item in items:
        for mark in item.iter_markers("thin"):
            cases.setdefault((item.parent.nodeid, item.originalname, mark.args[0]), []).append(item)
    for (_, _, number), all_cases in cases.items():
        chosen = _spread(all_cases, number)
        for item in all_cases:
            if item not in chosen:
                item.add_marker("slow")


def _empty_repository(config):
    folder = Path(mkdtemp(prefix="hookpoint-git-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    (folder / "objects").mkdir()
    (folder / "refs").mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    return str(folder)


def _has_room(folder):
    return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > MEMORY_BYTES


@pytest.fixture
def spread(pytestconfig):
    """Return `spread(cases, number)`: `number` of the cases, with the first and the last; all of them in `make test-all`."""

    def choose(cases, number):
        cases = list(cases)
        return _spread(cases, number) if pytestconfig.option.markexpr == QUICK else cases

    return choose


def _spread(cases, number):
    if number >= len(cases):
        return cases
    return [cases[round(place * (len(cases) - 1) / (number - 1))] for place in range(number)]


class Cut(Exception):
    """Raised to interrupt the run."""


class Cuts(hookpoint.Callback):
    """Interrupt the run at the end of this step."""

    def __init__(self, step):
        self.step = step

    def on_iter_end(self, run):
        if run.step == self.step:
            raise Cut


class Saves(hookpoint.Callback):
    """Request a checkpoint after these steps, or after each step. With a clock, a checkpoint takes `seconds`."""

    saves = True

    def __init__(self, *steps, clock=None, seconds=50.0, in_background=False):
        self.steps, self.clock, self.seconds, self.in_background = steps, clock, seconds, in_background

    def on_train_iter_end(self, run):
        if not self.steps or run.step in self.steps:
            run.save("mine", in_background=self.in_background)

    def state_dict(self):
        if self.clock is not None:
            self.clock.now += self.seconds
        return {}


class Recorder(hookpoint.Callback):
    """A monitor that keeps scalars: `rows` has (at, step, scalars) of each record."""

    def __init__(self):
        self.rows = []

    def on_records(self, records):
        self.rows += [(record.at, record.step, record.scalars()) for record in records if record.kind == "scalars"]

    @property
    def steps(self):
        """(step, scalars) of each log step."""
        return [(step, scalars) for at, step, scalars in self.rows if at == "step"]

    def of(self, name):
        """(step, value) of each log step that has this scalar."""
        return [(step, scalars[name]) for step, scalars in self.steps if name in scalars]


class Disk:
    """A store that outlives its runs. `saved` has (step, tags) of each checkpoint, `kept(tag)` the steps that are left."""

    def __init__(self):
        self.saved, self.background, self.states, self.fails = [], [], {}, []
        self._kept = {}

    @property
    def newest(self):
        """The state of the newest checkpoint."""
        return self.states[self.saved[-1][0]]

    def kept(self, tag):
        return [one.step for one in self._kept.get(tag, ())]

    def open(self, resume, identity):
        return Checkpoint("disk/newest", copy.deepcopy(self.newest)) if self.saved else None

    def write(self, state, *, step, elapsed, request):
        if self.fails and self.fails.pop(0):
            raise OSError("disk is full")
        self.saved.append((step, list(request.tags)))
        self.background.append(request.in_background)
        self.states[step] = copy.deepcopy(state)
        for tag, keep in request.tags.items():
            all_of_tag = [*self._kept.get(tag, ()), Kept(f"step-{step}", step, elapsed)]
            self._kept[tag] = list(keep(all_of_tag)) if keep is not None else all_of_tag
        return Saved(f"disk/{step}", step, list(request.tags))

    def check(self, state): ...

    def collect(self, *, wait=False):
        return []

    def close(self): ...


def _train(
    loop, callbacks, rows=None, *, epochs=1, batches=3, epoch_begin=None, step=None, epoch_end=None, cut_at=None, **options
):
    with loop(callbacks, **options) as run:
        for epoch in run.epochs(epochs if rows is None else len(rows)):
            if epoch_begin is not None:
                epoch_begin(run)
            for batch in () if batches is None else run.batches(range(batches) if isinstance(batches, int) else batches):
                if step is not None:
                    step(run, batch)
                if run.current_iteration == cut_at:
                    raise Cut
            if rows is not None:
                run.log(rows[epoch - 1])
            if epoch_end is not None:
                epoch_end(run)
    return run


@pytest.fixture(scope="session")
def train():
    """Return `train(callbacks, ...)`, which trains in the core's Loop with these options and returns the run.

    Each epoch calls `epoch_begin(run)`, then `step(run, batch)` for each of the `batches` (a number, an iterable, or None for
    no pass). It logs its row of `rows`, if given, and calls `epoch_end(run)`. The run is interrupted in iteration `cut_at`.
    """
    return partial(_train, Loop)


@pytest.fixture(scope="session")
def train_public():
    """Return `train` with the public Loop, which keeps checkpoints in its workdir, without default callbacks and monitors."""
    return partial(_train, hookpoint.Loop, extra_callbacks=[], monitors=[])


@pytest.fixture(scope="session")
def cut_off():
    """Return the exception that `train` and `cuts` raise to interrupt a run."""
    return Cut


@pytest.fixture(scope="session")
def cuts():
    """Return `cuts(step)`: a callback that interrupts the run at the end of this step."""
    return Cuts


@pytest.fixture(scope="session")
def saves():
    """Return `saves(*steps)`: a callback that requests a checkpoint after these steps, or after each step."""
    return Saves


@pytest.fixture(scope="session")
def recorder():
    """Return `recorder()`: a monitor that keeps the scalars it gets."""
    return Recorder


@pytest.fixture(scope="session")
def new_disk():
    """Return `new_disk()`: a store in memory, which deletes checkpoints by the rules in their requests."""
    return Disk


@pytest.fixture
def disk(new_disk):
    return new_disk()


@pytest.fixture
def train_run(tmp_path):
    """Train a short run with checkpoints and scalars.jsonl, in tmp_path/runs; return its folder."""

    def run(name="mine", *, epochs=2, callbacks=None, monitors=None, values=None, **options):
        workdir = tmp_path / "runs" / name
        savers = [cb.ModelSaver(async_save=False), cb.MinSaver("val_loss", async_save=False)]  # events in a fixed order
        callbacks = savers if callbacks is None else callbacks
        monitors = [cb.JSONWriter()] if monitors is None else monitors
        options = {"log_every": 2, "config": {"depth": 3, "net": {"width": 8}, "api_key": "abc"}, "name": name, **options}
        with hookpoint.Loop(callbacks, workdir=workdir, extra_callbacks=[], monitors=monitors, **options) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches([1.0, 2.0, 3.0, 4.0]):
                    run.log(loss=batch / epoch, **(values or {}))
                for batch in run.batches([3.0], mode="val"):
                    run.log(loss=batch / epoch)
        return workdir

    return run


@dataclass
class Training:
    """A process that trains one epoch for each line it gets."""

    process: subprocess.Popen
    workdir: Path

    def epoch(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "trained\n"

    def end(self):
        self.process.stdin.close()
        self.process.wait(timeout=250)


TRAINING = """
    import sys
    from hookpoint import Loop
    from hookpoint import callbacks as cb

    with Loop([cb.ModelSaver()], workdir=sys.argv[1], extra_callbacks=[], monitors=[cb.JSONWriter()], log_every=1) as run:
        print("training", flush=True)
        for epoch in run.epochs(100):
            for batch in run.batches([1.0, 3.0]):
                run.log(loss=batch / epoch)
            if not sys.stdin.readline():
                break
            print("trained", flush=True)
"""


@pytest.fixture
def training(tmp_path):
    """Train in a separate process, in tmp_path/runs, until it is ended or killed."""

    @contextmanager
    def start(name="live"):
        workdir = tmp_path / "runs" / name
        arguments = [sys.executable, "-c", textwrap.dedent(TRAINING), str(workdir)]
        pipe = subprocess.PIPE
        with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout.readline() == "training\n"
                yield Training(process, workdir)
            finally:
                process.kill()

    return start


class Tunable(hookpoint.Callback):
    """A callback with settings that can be changed. `alphas` has the value of each iteration."""

    knobs = (
        hookpoint.Knob("alpha", float, low=0.0, high=1.0, about="strength of nothing"),
        hookpoint.Knob("mode", str, choices=("fast", "slow")),
    )

    def __init__(self):
        self.alpha, self.mode, self.alphas = 0.5, "fast", []

    def on_train_iter_end(self):
        self.alphas.append(self.alpha)


class Steered:
    """A run that trains in a thread. While `gate` is cleared, the current step does not end."""

    def __init__(self, workdir, **options):
        self.workdir, self.tunable, self.error = workdir, Tunable(), None
        self.gate, self._is_over, self._has_begun, self._fails = (threading.Event() for _ in range(4))
        self.gate.set()
        self._options = {"extra_callbacks": [], "monitors": [cb.JSONWriter()], "log_every": 50, **options}
        self._thread = threading.Thread(target=self._train)

    def start(self):
        self._thread.start()
        self._has_begun.wait(60)

    def end(self):
        """End the training like a `break`, if it has not ended yet."""
        self._is_over.set()
        self.gate.set()
        with suppress(hookpoint.HookpointError):
            if hookpoint.control(self.workdir).live().paused:
                hookpoint.control(self.workdir).resume()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def fail(self):
        """End the training with an exception, long after its last checkpoint."""
        self._fails.set()
        self._thread.join(60)
        assert isinstance(self.error, Cut)
        self.error = None

    def events(self):
        """The events about commands."""
        lines = (self.workdir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "control"]

    def _train(self):
        try:
            callbacks = [self.tunable, cb.ModelSaver(), *self._options.pop("callbacks", ())]
            with hookpoint.Loop(callbacks, workdir=self.workdir, **self._options) as run:
                for _epoch in run.epochs(2):
                    for _ in run.batches(iter(int, 1)):
                        self._has_begun.set()
                        self.gate.wait(60)
                        time.sleep(0.001)
                        if self._fails.is_set():
                            raise Cut
                        if self._is_over.is_set():
                            break
                    break
        except BaseException as error:
            self.error = error
        finally:
            self._has_begun.set()


@pytest.fixture
def steered(tmp_path):
    """Return `steered(name, **options)`: a run in a thread, in tmp_path/runs, that takes commands until the block ends."""

    @contextmanager
    def start(name="live", **options):
        training = Steered(tmp_path / "runs" / name, **options)
        training.start()
        try:
            yield training
        finally:
            training.end()
        assert training.error is None

    return start


@pytest.fixture
def forge():
    """Return `forge(folder, name)`: change a manifest to match a changed file, as somebody without the key could."""

    def change(folder, name):
        manifest = json.loads((folder / "manifest.json").read_text())
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
        del manifest["digest"]
        text = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        manifest["digest"] = sha256(text.encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")

    return change


@pytest.fixture
def until():
    """Wait until a condition is true."""

    def wait(is_true, seconds=30):
        end = time.monotonic() + seconds
        while not is_true():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory):
    """Return `warm_python(script)`: run it in a fork of a process that has imported everything; return its stdin and stdout."""
    start_warm = run_path(str(Path(__file__).with_name("warm_python.py")))["start_warm"]
    own = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    return lambda script: start_warm(script, own.parent if is_worker else own, os.getppid() if is_worker else os.getpid())


@pytest.fixture
def sample(pytestconfig):
    """Return `sample(some, everything)`: `some`, or `everything` in `make test-all`."""
    return lambda some, everything: some if pytestconfig.option.markexpr == QUICK else everything


def pytest_collection_finish(session):
    gc.freeze()  # torch leaves a million objects behind: collections during tests need not look at them again


class Freezing:
    """Freeze what tests import as well, now and then: torch.compile alone adds half a million objects."""

    def __init__(self, every=200):
        self.every, self.count = every, 0

    def pytest_runtest_logfinish(self):
        self.count += 1
        if self.count % self.every == 0:
            gc.collect()
            gc.freeze()


class Propagating:
    """Let torch's loggers propagate to `torch`: pytest adds its handler to each that does not, six times per test."""

    def pytest_collection_finish(self):
        for name, logger in list(logging.root.manager.loggerDict.items()):
            if name.startswith("torch.") and isinstance(logger, logging.Logger) and name != "torch.__trace":
                logger.propagate, logger.handlers = True, []


def pytest_terminal_summary(terminalreporter):
    sums: dict[str, Counter[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, counted in report.user_properties:
                    if name == "faults":
                        sums.setdefault(counted[0], Counter()).update(counted[1])
    if sums:
        terminalreporter.section("faults")
        for heading, counts in sorted(sums.items()):
            terminalreporter.line(
                f"{heading}: " + ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
            )
