"""Saves that run out of memory are reported and leave nothing half-written, and training continues."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest

from hookpoint import Callback, LambdaCallback, Loop, verify
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import CannotSave
from hookpoint.monitors import JSONWriter
from hookpoint.storage.disk._fs_calls import intercepted

NO_MEMORY = 1 << 62  # bytes, which no machine has


class Hungry:
    """Takes more memory than any machine has when it is saved after these steps; `step` is the current step."""

    def __init__(self, *steps):
        self.steps, self.step = steps, 0

    def state_dict(self):
        return {"rows": bytes(NO_MEMORY if self.step in self.steps else 1)}

    def load_state_dict(self, state): ...


class Counts(Callback):
    def __init__(self, hungry):
        super().__init__()
        self.hungry = hungry

    def on_train_iter_begin(self, run):
        self.hungry.step = run.step + 1


def events(workdir, name):
    lines = (workdir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def folders(workdir):
    return sorted(name for name in os.listdir(workdir / "checkpoints") if name != "last")


@pytest.fixture
def steps(tmp_path, saves):
    """Train `number` steps in tmp_path/run with a checkpoint after each, and return the run."""

    def go(hungry, number=5, in_background=False, step=None):
        callbacks = [Counts(hungry), saves(in_background=in_background)]
        loop = Loop(callbacks, workdir=tmp_path / "run", extra_callbacks=[], monitors=[JSONWriter()], state={"hungry": hungry})
        with loop as run:
            for batch in run.batches(range(number)):
                if step is not None:
                    step(batch)
        return run

    return go


def test_on_run_end_is_called_after_the_last_checkpoint(tmp_path):
    heard = []
    told = LambdaCallback(on_save=lambda tags: heard.append(list(tags)), on_run_end=lambda: heard.append("end"))
    with Loop([ModelSaver(), told], workdir=tmp_path / "run", extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(2)):
                pass
    assert heard == [["model"], ["model"], "end"]


@pytest.mark.parametrize("in_background", [False, True], ids=["waits", "background"])
def test_a_save_without_memory_is_reported_and_the_run_continues(in_background, steps, tmp_path, caplog):
    assert steps(Hungry(2, 4), in_background=in_background).step == 5
    named = "not enough memory for a checkpoint (MemoryError)"
    assert f"step 2 could not be saved: {named}; the last good checkpoint is " in caplog.text
    assert [(one["reason"], one["in_a_row"]) for one in events(tmp_path / "run", "save_failed")] == [(named, 1)] * 2
    assert folders(tmp_path / "run") == ["step-00000001", "step-00000003", "step-00000005", "step-00000005-2"]
    assert verify(tmp_path / "run").ok


def test_the_third_save_without_memory_in_a_row_ends_the_run(steps, tmp_path):
    with pytest.raises(CannotSave) as raised:
        steps(Hungry(2, 3, 4))
    assert raised.value.errno == errno.ENOMEM
    assert str(raised.value) == (
        "step 4 could not be saved: not enough memory for a checkpoint (MemoryError)\n"
        f"  last      good checkpoint: {tmp_path}/run/checkpoints/step-00000001\n"
        "  free      memory, or pass async_save=False so that the saver needs no copy; then start again to resume"
    )
    assert folders(tmp_path / "run") == ["step-00000001"]


@pytest.mark.parametrize("in_background", [False, True], ids=["waits", "background"])
@pytest.mark.parametrize("at", ["create", "write", "fsync", "rename"])
def test_a_save_without_memory_leaves_no_partial_checkpoint(at, in_background, steps, tmp_path, caplog):
    done = []

    def without_memory(operation, proceed):
        if operation.name == at and "/.staging-step-00000002-" in operation.path and not done:
            done.append(operation)
            raise MemoryError
        return proceed()

    with intercepted(without_memory):
        assert steps(Hungry(), 3, in_background=in_background).step == 3
    assert done
    assert len(events(tmp_path / "run", "save_failed")) == 1
    assert folders(tmp_path / "run") == ["step-00000001", "step-00000003", "step-00000003-2"]


def test_a_memory_error_in_the_training_step_propagates(steps, tmp_path):
    def step(batch):
        if batch == 2:
            bytes(NO_MEMORY)

    with pytest.raises(MemoryError):
        steps(Hungry(), step=step)
    assert not events(tmp_path / "run", "save_failed")


@pytest.mark.parametrize("error", [RuntimeError("the state is of another kind"), ValueError("out of memory")])
def test_other_errors_in_state_dict_propagate(error, steps):
    class Wrong(Hungry):
        def state_dict(self):
            if self.step == 2:
                raise error
            return {}

    with pytest.raises(type(error), match=str(error)):
        steps(Wrong())


LIMITED = """
    import logging, resource, sys, threading, torch
    from hookpoint import Every, Loop
    from hookpoint.callbacks import ModelSaver

    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    workdir, what = sys.argv[1:]
    small, large = torch.zeros(1), torch.zeros(64 << 18)  # 64 MiB

    class Kept:
        rows = small

        def state_dict(self):
            return {"rows": torch.zeros(64 << 18) if self.rows is None else self.rows}

        def load_state_dict(self, state): ...

    def limit(most):
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

    def used():
        return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()

    kept, saver = Kept(), ModelSaver(async_save=what != "waits").when(Every(steps=1))
    with Loop([saver], workdir=workdir, extra_callbacks=[], monitors=[], state={"kept": kept}) as run:
        for batch in run.batches(range(4)):
            if batch == 1:
                if what == "thread":
                    threading.stack_size(64 << 20)
                else:
                    kept.rows = large if what == "copy" else None
                limit(used() + (16 << 20))
            elif batch == 2:
                kept.rows = small
                limit(resource.RLIM_INFINITY)
    print("trained", run.step)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("waits", "RuntimeError: [enforce fail", marks=pytest.mark.slow),
        pytest.param("state", "RuntimeError: [enforce fail", marks=pytest.mark.slow),
        ("copy", "RuntimeError: [enforce fail"),
        ("thread", "RuntimeError: can't start new thread"),
    ],
)
def test_a_process_with_limited_memory_continues_training(what, why, tmp_path):
    program = [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / "run"), what]
    done = subprocess.run(program, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert "trained 4" in done.stdout
    assert f"step 2 could not be saved: not enough memory for a checkpoint ({why}" in done.stdout
    assert verify(tmp_path / "run").ok
    assert folders(tmp_path / "run") == ["step-00000001", "step-00000003", "step-00000004", "step-00000004-2"]
