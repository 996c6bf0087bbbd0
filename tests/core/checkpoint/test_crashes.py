"""Crash loops: a run that keeps failing with the same error at the same iteration is not restarted forever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from types import ModuleType

import pytest

from hookpoint import Loop
from hookpoint import callbacks as cb
from hookpoint.core.checkpoint.crashes import Crashes
from hookpoint.core.errors import BadLoop, CannotResume
from hookpoint.core.schedule.moment import Moment
from hookpoint.monitors import JSONWriter


@pytest.fixture
def start(tmp_path):
    """Train 3 epochs of 4 batches in tmp_path/run; return the exception that ended the run, or None.

    Iteration `at` raises `error`. With `saver`, a checkpoint is written after each epoch.
    """

    def go(at=6, error=None, *, saver=True, epochs=3, **options):
        callbacks = [cb.ModelSaver()] if saver else []
        loop = Loop(callbacks, workdir=tmp_path / "run", extra_callbacks=[], monitors=[JSONWriter()], **options)
        try:
            with loop as run:
                for _ in run.epochs(epochs):
                    for _ in run.batches(range(4)):
                        if run.iteration == at:
                            raise error or ValueError("no such sample")
        except Exception as raised:
            return raised
        return None

    return go


@pytest.fixture
def crashes(tmp_path):
    """Return (iteration, type, count) of the crashes in run.json."""

    def read():
        rows = json.loads((tmp_path / "run" / "run.json").read_text()).get("crashes", [])
        return [(row["iteration"], row["type"], row["count"]) for row in rows]

    return read


def test_the_same_crash_is_counted_and_the_start_after_the_fifth_raises(start, crashes, tmp_path, caplog):
    for number in range(1, 6):
        assert isinstance(start(), ValueError)
        assert crashes() == [(6, "ValueError", number)]
    assert "failed 5 times with the same error at the same point; this is the limit set by max_crashes" in caplog.text
    before = sorted(os.listdir(tmp_path / "run"))
    refused = start()
    assert isinstance(refused, CannotResume)
    first, listed, *cures = str(refused).splitlines()
    assert first.startswith(f"{tmp_path}/run was not restarted: it has failed 5 times with the same error")
    assert first.endswith(" at the same point in training.")
    assert listed.startswith("  5 x epoch 2, iteration 6, step 6: ValueError: no such sample, last 20")
    assert cures == [
        '  fix       the cause (editing the code resets the count), or start with resume="must", which also resets the count',
        "  allow     more crashes with max_crashes=, or any number with max_crashes=None",
    ]
    assert sorted(os.listdir(tmp_path / "run")) == before
    assert crashes() == [(6, "ValueError", 5)]
    assert isinstance(start(), CannotResume)


def test_editing_the_program_resets_the_count(start, crashes, tmp_path, monkeypatch):
    """A developer who fixes an error and hits another one at the same iteration can restart."""
    program = tmp_path / "train_digits.py"
    program.write_text("# trains")
    os.utime(program, (1, 1))
    module = ModuleType("train_digits")
    module.__file__ = str(program)
    monkeypatch.setitem(sys.modules, "train_digits", module)
    for _ in range(2):
        assert isinstance(start(max_crashes=2), ValueError)
    assert isinstance(start(max_crashes=2), CannotResume)
    later = time.time() + 10
    os.utime(program, (later, later))
    assert isinstance(start(max_crashes=2), ValueError)
    assert crashes() == [(6, "ValueError", 1)]


def test_the_message_lists_every_crash(start):
    start(error=OSError("the network is gone"), max_crashes=2)
    start(error=KeyError("label"), max_crashes=2)
    start(error=KeyError("label"), max_crashes=2)
    lines = str(start(max_crashes=2)).splitlines()
    assert "1 x epoch 2, iteration 6, step 6: OSError: the network is gone" in lines[1]
    assert "2 x epoch 2, iteration 6, step 6: KeyError: 'label'" in lines[2]


@pytest.mark.parametrize("saver", [True, False], ids=["after a checkpoint", "without any"])
@pytest.mark.parametrize("resume", ["must", "never", "path"])
def test_an_explicit_resume_resets_the_count(resume, saver, start, crashes, tmp_path):
    for _ in range(2):
        start(max_crashes=2, saver=saver)
    assert isinstance(refused := start(max_crashes=2, saver=saver), CannotResume)
    assert f'resume="{"must" if saver else "never"}"' in str(refused)
    if not saver and resume != "never":
        return
    given = tmp_path / "run" / "checkpoints" / "step-00000004" if resume == "path" else resume
    assert isinstance(start(max_crashes=2, resume=given, saver=saver), ValueError)
    assert crashes() == [(6, "ValueError", 1)]


def test_a_run_that_gets_further_clears_earlier_crashes(start, crashes):
    start(at=6)
    start(at=6)
    start(at=7)
    assert crashes() == [(7, "ValueError", 1)]
    start(at=6)
    assert crashes() == [(7, "ValueError", 1), (6, "ValueError", 1)]
    start(at=7)
    assert crashes() == [(7, "ValueError", 2)]
    assert start(at=None) is None
    assert crashes() == []


def test_a_checkpoint_past_a_crash_clears_its_count(start, crashes):
    start(at=6)
    start(at=6)
    assert start(at=None, epochs=2) is None
    assert crashes() == []
    start(at=10)
    assert crashes() == [(10, "ValueError", 1)]


def test_different_errors_are_counted_separately(start, crashes):
    for _ in range(2):
        start(error=ValueError("x"), max_crashes=2)
        assert not isinstance(start(error=KeyError("y"), max_crashes=3), CannotResume)
    assert sorted(crashes()) == [(6, "KeyError", 2), (6, "ValueError", 2)]


def test_a_crash_before_the_first_checkpoint_is_counted(start, crashes):
    for number in range(1, 4):
        assert isinstance(start(at=0, saver=False, max_crashes=3), ValueError)
        assert crashes() == [(0, "ValueError", number)]
    assert isinstance(start(at=0, saver=False, max_crashes=3), CannotResume)


@pytest.mark.parametrize("most", [None, 0])
def test_without_a_limit_the_run_always_restarts(most, start, crashes):
    for _ in range(7):
        assert isinstance(start(max_crashes=most), ValueError)
    assert crashes() == [(6, "ValueError", 7)]


@pytest.mark.parametrize("most", [-1, 2.5, True, "5"])
def test_an_invalid_max_crashes_raises(most):
    with pytest.raises(BadLoop, match="max_crashes must be an integer >= 0 or None"):
        Loop(max_crashes=most)


@pytest.mark.parametrize(
    "written",
    [
        None,
        7,
        {"a": 1},
        [None, 3, [], {}],
        [{"step": 1}, {"step": 1, "type": "E"}],
        [{"step": "x", "type": "E", "count": 9}, {"step": 1, "type": "E", "count": "9"}, {"step": 1, "type": "E", "count": -9}],
        [{"step": float("inf"), "type": "E", "count": 9}],
    ],
)
def test_invalid_crashes_in_run_json_are_ignored(written):
    crashes = Crashes(1)
    crashes.load({"crashes": written})
    crashes.check("mine", "resume='must'")
    assert crashes.rows == []


def test_long_texts_are_truncated_and_only_the_last_crashes_are_kept():
    crashes = Crashes(None)
    for number in range(100, 0, -1):
        crashes.add(Moment(1, number, number), "E", "x" * 10_000, "now")
    assert [row["step"] for row in crashes.rows] == list(range(20, 0, -1))
    assert len(crashes.rows[0]["text"]) == 200


TRAINING = """
    import os, signal, sys
    from hookpoint import Loop
    from hookpoint import callbacks as cb

    with Loop([cb.ModelSaver()], workdir="run", extra_callbacks=[], monitors=[], max_crashes=3) as run:
        for _ in run.epochs(3):
            for _ in run.batches(range(4)):
                if run.iteration == 6:
                    if sys.argv[1] == "raise":
                        raise ValueError("no such sample")
                    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.fixture
def process(tmp_path):
    """Start a process that trains until it raises or gets a signal; return its exit code and what it wrote to stderr."""

    def run(how):
        program = [sys.executable, "-c", textwrap.dedent(TRAINING), how]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
        return done.returncode, done.stderr

    return run


def test_a_supervisor_that_keeps_restarting_a_process_gets_the_reason(process):
    codes = []
    while True:
        code, said = process("raise")
        codes.append(code)
        if "was not restarted" in said:
            break
    assert codes == [1, 1, 1, 1]  # Python's exit code for an uncaught exception
    assert "3 x epoch 2, iteration 6, step 6: ValueError: no such sample" in said


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", -signal.SIGKILL), ("SIGTERM", 143)])
def test_a_signal_does_not_count_as_a_crash(how, code, process, crashes):
    process("raise")
    for _ in range(4):
        assert process(how)[0] == code
        if how == "SIGTERM":
            break  # the run gets further: the step is finished and saved
    assert crashes() == ([(6, "ValueError", 1)] if how == "SIGKILL" else [])
