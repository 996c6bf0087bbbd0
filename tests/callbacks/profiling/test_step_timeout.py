from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
import time

import pytest

from hookpoint import Loop, on
from hookpoint.adapters._hosted_run import NO_SKIPS, UNAVAILABLE
from hookpoint.callbacks import JSONWriter, ModelSaver, StepTimeout, StepTooSlow
from hookpoint.callbacks.profiling import _step_watch, step_timeout
from hookpoint.callbacks.profiling._step_watch import StepWatch, is_in_debugger, thread_dump
from hookpoint.core.loop.host import Host
from hookpoint.core.loop.host_driver import HostDriver

LIMIT = 0.5


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [thread.name for thread in threading.enumerate() if "StepTimeout" in thread.name]


@pytest.fixture(autouse=True)
def pass_time(clock, monkeypatch, until):
    """Return `pass_time(seconds)`: advance the clock and wait until the watch has read it. No other time passes."""
    looks = 0

    def look():
        nonlocal looks
        looks += 1
        return clock()

    def go(seconds):
        clock.now += seconds
        before = looks
        until(lambda: looks >= before + 2)  # the first reading may have begun before the clock advanced; the second has not

    monkeypatch.setattr(step_timeout, "monotonic", clock)
    monkeypatch.setattr(_step_watch, "monotonic", look)
    return go


@pytest.fixture
def hang_until(clock, until):
    """Return `hang_until(condition)`, which blocks in Python code for longer than the limit, until the condition is true."""

    def hang(is_so):
        clock.now += 2 * LIMIT
        until(is_so)

    return hang


def written(path):
    return lambda: path.exists() and path.read_text().endswith("\n")


def at_step(step, function):
    return lambda run, batch: function() if run.step == step else None


def events(workdir):
    lines = [json.loads(line) for line in (workdir / "events.jsonl").read_text().splitlines()]
    return [line for line in lines if "step timeout" in json.dumps(line)]


def test_a_slow_step_logs_the_stacks_of_all_threads_and_the_run_continues(train_public, tmp_path, caplog, hang_until):
    file = tmp_path / "stacks-3.txt"
    run = train_public(
        [StepTimeout(LIMIT), JSONWriter()], batches=5, workdir=tmp_path, step=at_step(2, lambda: hang_until(written(file)))
    )
    assert run.step == 5
    words = file.read_text()
    assert "StepTimeout: step 3 takes longer than 0.5 s" in words
    assert "MainThread, most recent call last:" in words
    assert "hang_until(written(file))" in words
    assert words.split("\n\n")[1].startswith("MainThread")
    assert "hookpoint StepTimeout" not in words  # the thread that watches is left out
    assert "hang_until(written(file))" in caplog.text
    (event,) = events(tmp_path)
    assert "stacks-3.txt" in json.dumps(event)
    assert sorted(path.name for path in tmp_path.glob("stacks*")) == ["stacks-3.txt"]


def test_each_slow_step_is_reported_once(train_public, tmp_path, caplog, hang_until, pass_time):
    def step(run, batch):
        if run.step in (1, 3):
            hang_until(written(tmp_path / f"stacks-{run.step + 1}.txt"))
            pass_time(2 * LIMIT)

    train_public([StepTimeout(LIMIT)], batches=5, workdir=tmp_path, step=step)
    assert sorted(path.name for path in tmp_path.glob("stacks*")) == ["stacks-2.txt", "stacks-4.txt"]
    assert caplog.text.count("takes longer than") == 2


def test_waiting_for_a_batch_counts(train_public, tmp_path, hang_until):
    class Slow:
        def __iter__(self):
            yield 1
            hang_until(written(tmp_path / "stacks-2.txt"))
            yield 2

    train_public([StepTimeout(LIMIT)], batches=Slow(), workdir=tmp_path)
    assert (tmp_path / "stacks-2.txt").exists()


def test_without_a_workdir_the_stacks_are_logged(train_public, caplog, hang_until):
    step = at_step(1, lambda: hang_until(lambda: "takes longer than" in caplog.text))
    train_public([StepTimeout(LIMIT)], batches=5, step=step)
    assert "hang_until(lambda" in caplog.text


def test_stop_ends_the_run_at_the_next_boundary_with_a_checkpoint(train_public, tmp_path, hang_until):
    callbacks = [StepTimeout(LIMIT, "stop"), ModelSaver()]
    step = at_step(2, lambda: hang_until(written(tmp_path / "stacks-3.txt")))
    run = train_public(callbacks, batches=5, epochs=2, workdir=tmp_path, step=step)
    assert run.step == 3
    assert "StepTimeout: step 3 takes longer than 0.5 s" in run._verdicts.reason
    assert (tmp_path / "checkpoints" / "step-00000003").exists()
    assert train_public(callbacks, batches=5, epochs=2, workdir=tmp_path).step == 10


def test_raise_raises_in_the_training_thread(train_public, tmp_path, hang_until):
    ended = []
    callbacks = [StepTimeout(LIMIT, "raise"), on("on_run_end")(lambda run: ended.append(run.step))]
    with pytest.raises(StepTooSlow, match="took longer than StepTimeout allows") as raised:
        train_public(callbacks, batches=5, workdir=tmp_path, step=at_step(2, lambda: hang_until(lambda: False)))
    assert "StepTimeout: step 3 takes longer than 0.5 s" in raised.value.__notes__
    assert ended == [2]


def test_raise_raises_nothing_after_the_run_has_ended(train_public, tmp_path, until, hang_until):
    class TakesLong(logging.Handler):
        """A slow log handler: meanwhile the late step ends, and the run with it."""

        def emit(self, record):
            is_told.set()
            until(lambda: timeout._watch is None)

    timeout, is_told, handler = StepTimeout(LIMIT, "raise"), threading.Event(), TakesLong(logging.ERROR)
    logging.getLogger("hookpoint").addHandler(handler)
    try:
        run = train_public([timeout], batches=5, workdir=tmp_path, step=at_step(4, lambda: hang_until(is_told.is_set)))
    finally:
        logging.getLogger("hookpoint").removeHandler(handler)
    assert run.step == 5
    assert (tmp_path / "stacks-5.txt").exists()


def test_raise_raises_a_timeout_error(train_public, tmp_path, hang_until):
    with pytest.raises(TimeoutError):
        train_public([StepTimeout(LIMIT, "raise")], batches=5, step=at_step(1, lambda: hang_until(lambda: False)))


PROGRAM = """
import ctypes, sys, threading, time
from hookpoint import Every, Loop
from hookpoint.callbacks import ModelSaver, StepTimeout

workdir, then, how, hangs = sys.argv[1:]
with Loop([StepTimeout(0.5, then), ModelSaver().when(Every(steps=2))], workdir=workdir, extra_callbacks=[]) as run:
    for _ in run.epochs(2):
        for batch in run.batches(range(5)):
            if run.step == 6 and hangs == "hangs":
                threading.Event().wait(60) if how == "lock" else ctypes.PyDLL(None).sleep(60)
print("done after", run.step)
"""


def start(workdir, then, how="lock", hangs="hangs"):
    command = [sys.executable, "-c", PROGRAM, str(workdir), then, how, hangs]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)


def test_exit_ends_the_process_with_code_75_and_the_run_can_be_resumed(tmp_path):
    done = start(tmp_path, "exit")
    assert done.returncode == StepTimeout.EXIT_CODE == 75
    assert "exiting with code 75" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("stacks*")) == ["stacks-7.txt"]
    assert events(tmp_path)
    again = start(tmp_path, "exit", hangs="goes on")
    assert again.returncode == 0, again.stderr
    assert again.stdout == "done after 10\n"
    assert "step 6" in again.stderr


def test_raise_cannot_interrupt_a_thread_that_waits_for_a_lock(tmp_path, until):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "raise", "lock", "hangs"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(written(tmp_path / "stacks-7.txt"))
        time.sleep(LIMIT)
        assert process.poll() is None
        process.kill()
    assert "threading.py" in (tmp_path / "stacks-7.txt").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sleep to hold the interpreter with")
def test_stacks_are_written_when_the_interpreter_hangs(tmp_path):
    done = start(tmp_path, "exit", how="interpreter")
    assert done.returncode == 1
    assert "Timeout" in (tmp_path / "stacks-interpreter.txt").read_text()
    assert "most recent call first" in (tmp_path / "stacks-interpreter.txt").read_text()


# Work outside of steps


def test_work_between_steps_is_not_watched(tmp_path, caplog, pass_time):
    @on("on_epoch_end")
    def slow(run):
        pass_time(3 * LIMIT)

    def validate(run):
        for _ in run.batches(range(1), mode="val"):
            pass_time(3 * LIMIT)

    with Loop([StepTimeout(LIMIT), slow], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for batch in run.batches(range(3)):
                if batch == 1:
                    validate(run)
            validate(run)
    assert not list(tmp_path.glob("stacks*"))
    assert "takes longer" not in caplog.text


def test_validation_is_watched_if_requested(tmp_path, hang_until, pass_time):
    with Loop([StepTimeout(LIMIT, covers=["val"])], workdir=tmp_path, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for batch in run.batches(range(3)):
                pass_time(2 * LIMIT if batch == 1 else 0)
            for _ in run.batches(range(2), mode="val"):
                hang_until(written(tmp_path / "stacks-4.txt"))
    assert [path.name for path in tmp_path.glob("stacks*")] == ["stacks-4.txt"]


def test_the_first_iteration_of_a_pass_can_have_a_longer_limit(train_public, tmp_path, pass_time):
    def step(run, batch):
        if run.batch == 0:
            pass_time(3 * LIMIT)

    train_public([StepTimeout(LIMIT, first_seconds=100)], batches=5, epochs=2, workdir=tmp_path, step=step)
    assert not list(tmp_path.glob("stacks*"))


def test_a_retried_iteration_is_watched(train_public, tmp_path, hang_until):
    tried = []

    def step(run, batch):
        if run.batch == 1:
            tried.append(run.batch)
            if len(tried) == 1:
                run.retry()
            else:
                hang_until(written(tmp_path / "stacks-2.txt"))

    train_public([StepTimeout(LIMIT)], batches=5, workdir=tmp_path, step=step)
    assert len(tried) == 2


def test_a_step_in_a_debugger_is_not_late(train_public, tmp_path, caplog, pass_time):
    namespace = {"__name__": "pdb", "pass_time": pass_time}
    exec(f"def interaction(): pass_time({3 * LIMIT})", namespace)  # like a user who is thinking
    train_public([StepTimeout(LIMIT, "raise")], batches=5, workdir=tmp_path, step=at_step(1, namespace["interaction"]))
    assert "takes longer" not in caplog.text


# Reuse


def test_an_instance_can_be_reused_after_an_exception(train_public, tmp_path, hang_until):
    callback = StepTimeout(LIMIT)

    def fail(run, batch):
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        train_public([callback], batches=5, step=fail)
    step = at_step(2, lambda: hang_until(written(tmp_path / "stacks-3.txt")))
    run = train_public([callback], batches=5, workdir=tmp_path, step=step)
    assert run.step == 5


def test_several_timeouts_have_separate_limits(train_public, tmp_path, caplog, hang_until):
    callbacks = [StepTimeout(LIMIT, name="soon"), StepTimeout(100, "exit", name="late")]
    step = at_step(1, lambda: hang_until(written(tmp_path / "stacks-2.txt")))
    train_public(callbacks, batches=5, workdir=tmp_path, step=step)
    assert "soon: step 2 takes longer" in caplog.text
    assert "late: step" not in caplog.text
    assert [path.name for path in tmp_path.glob("stacks*")] == ["stacks-2.txt"]


def test_a_timeout_can_be_pickled_during_a_run(train_public):
    callback = StepTimeout(60)
    train_public([callback], batches=5, step=lambda run, batch: pickle.loads(pickle.dumps(callback)))


def test_stacks_of_an_earlier_start_are_kept(train_public, tmp_path, hang_until):
    (tmp_path / "stacks-2.txt").write_text("of an earlier start, and not of this one\n")
    file = tmp_path / "stacks-2.txt"
    train_public(
        [StepTimeout(LIMIT)],
        batches=5,
        workdir=tmp_path,
        step=at_step(1, lambda: hang_until(lambda: "MainThread" in file.read_text())),
    )
    assert file.read_text().startswith("of an earlier start")


# Parts


def test_a_thread_dump_begins_with_the_given_thread():
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="the one")
    thread.start()
    words = thread_dump(thread.ident)
    end.set()
    thread.join()
    assert words.startswith("the one, most recent call last:\n")
    assert "test_step_timeout" not in words.splitlines()[0]
    assert not is_in_debugger(threading.get_ident())


def test_a_watch_that_fails_logs_the_error_and_ends(caplog, clock, hang_until):
    def late(seconds):
        raise RuntimeError("no")

    watch = StepWatch("StepTimeout", 0.01, 0.01, late, stuck=None, exits=False)
    watch.began = clock()
    hang_until(lambda: "StepTimeout failed: RuntimeError: no; the run continues without it" in caplog.text)
    watch.close()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"seconds": 0}, "seconds must be a number > 0, got 0"),
        ({"seconds": -1}, "seconds must be a number > 0, got -1"),
        ({"seconds": "10"}, "seconds must be a number > 0, got '10'"),
        ({"seconds": 1, "first_seconds": 0}, "first_seconds must be a number > 0, got 0"),
        ({"seconds": 1, "then": "die"}, "then must be 'log', 'stop', 'raise' or 'exit', got 'die'"),
        ({"seconds": 1, "covers": ["test"]}, "covers must be 'train', 'val' or 'pred', got 'test'"),
        ({"seconds": 1, "covers": []}, r"covers must be 'train', 'val' or 'pred', got \[\]"),
    ],
)
def test_invalid_arguments_raise(bad, words):
    with pytest.raises(ValueError, match=words):
        StepTimeout(**bad)


def test_covers_can_be_a_single_mode():
    assert StepTimeout(1, covers="val").covers == ("val",)


def test_in_another_trainer_a_step_begins_with_its_iteration(caplog, hang_until, pass_time):
    driver = HostDriver([StepTimeout(0.05, then="stop")], Host("Trainer", UNAVAILABLE | NO_SKIPS))
    driver.start_run()
    driver.start_epoch()
    driver.start_pass("train")
    pass_time(0.2)  # the trainer waits for its data
    assert "takes longer" not in caplog.text
    driver.start_iteration([1])
    hang_until(lambda: "step 1 takes longer than 0.05 s" in caplog.text)
    assert not driver.wants_stop
    driver.finish_iteration()
    assert driver.wants_stop
    driver.finish_run()
