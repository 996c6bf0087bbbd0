from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from hookpoint.callbacks import JSONWriter, StartProcOrThread
from hookpoint.callbacks.debug import start_proc_or_thread

METHODS = ["spawn", "forkserver", *(["fork"] if hasattr(os, "fork") else [])]


def sleep():
    time.sleep(600)


def fail():
    sys.exit(3)


def ignore_terminate():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(os.environ["READY"]).touch()
    time.sleep(600)


def process(target, method="spawn"):
    return multiprocessing.get_context(method).Process(target=target, daemon=True)


class Server:
    """Something with a start method that is neither a process nor a thread."""

    def __init__(self, calls):
        self.calls = calls

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


class Stoppable(threading.Thread):
    def __init__(self):
        super().__init__(name="stoppable")
        self.asked = threading.Event()

    def run(self):
        self.asked.wait()

    def stop(self):
        self.asked.set()


@pytest.fixture
def blocked():
    """Return a function that tells whether a process blocks or ignores SIGINT."""

    def tell(pid):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = [int(status.split(f"{name}:")[1].split()[0], 16) for name in ("SigBlk", "SigIgn")]
        return any(mask & (1 << (signal.SIGINT - 1)) for mask in masks)

    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc here")
    return tell


@pytest.mark.skipif("fork" not in METHODS, reason="nothing is forked here")
def test_a_forked_process_is_stopped_right_after_its_start(train_public):
    for _ in range(10):
        one = process(sleep, "fork")
        train_public([StartProcOrThread(one)], batches=None)
        assert one.exitcode == -signal.SIGTERM


@pytest.mark.parametrize("method", METHODS)
def test_a_process_lives_as_long_as_the_run_and_ignores_ctrl_c(train_public, method, blocked):
    one = process(sleep, method)
    seen = []
    train_public([StartProcOrThread(one)], step=lambda run, batch: seen.append((one.is_alive(), blocked(one.pid))))
    assert seen == [(True, True)] * 3
    assert one.exitcode == -signal.SIGTERM
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_is_stopped_when_the_run_is_in_another_thread(train_public, blocked):
    one = process(sleep)
    seen = []
    thread = threading.Thread(
        target=train_public, args=[[StartProcOrThread(one)]], kwargs={"step": lambda run, batch: seen.append(one.pid)}
    )
    thread.start()
    thread.join()
    assert seen
    assert one.exitcode == -signal.SIGTERM


def test_a_command_runs_without_a_shell(train_public, tmp_path, blocked, until):
    program = "import sys, time, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); time.sleep(600)"
    callback = StartProcOrThread([sys.executable, "-c", program, str(tmp_path / "it ran"), "$HOME; ls"])
    (command,) = callback._workers

    def look(run, batch):
        until(lambda: (tmp_path / "it ran").exists() and (tmp_path / "it ran").read_text())
        assert command.is_alive()
        assert blocked(command._process.pid)

    for _ in range(2):  # a command can be started again
        train_public([callback], step=look)
        assert (tmp_path / "it ran").read_text() == "$HOME; ls"
        assert command.exitcode == -signal.SIGTERM
        (tmp_path / "it ran").unlink()


def test_a_process_is_stopped_after_an_exception(train_public):
    one = process(sleep)

    def look(run, batch):
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        train_public([StartProcOrThread(one)], step=look)
    assert one.exitcode == -signal.SIGTERM


def test_if_a_worker_fails_to_start_the_others_are_stopped(train_public):
    calls = []
    commands = [Server(calls), [os.devnull + "/no such program"]]
    with pytest.raises(NotADirectoryError):
        train_public([StartProcOrThread(commands)])
    assert calls == ["start", "stop"]


def test_a_worker_that_fails_to_stop_does_not_keep_the_others_running(train_public, caplog):
    calls = []

    class Bad(Server):
        def stop(self):
            raise RuntimeError("will not")

    train_public([StartProcOrThread([Server(calls), Bad(calls), Server(calls)])])
    assert calls == ["start"] * 3 + ["stop"] * 2
    assert "Bad could not be stopped: RuntimeError: will not" in caplog.text


def test_workers_are_stopped_in_reverse_order(train_public):
    calls = []

    class Named(Server):
        def __init__(self, name):
            super().__init__(calls)
            self.name = name

        def stop(self):
            calls.append(f"stop {self.name}")

    train_public([StartProcOrThread([Named("first"), Named("second")])])
    assert calls == ["start", "start", "stop second", "stop first"]


def test_a_process_that_ignores_sigterm_is_killed(train_public, tmp_path, monkeypatch, caplog, until):
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    one = process(ignore_terminate)
    train_public([StartProcOrThread(one, stop_seconds=0.2)], step=lambda run, batch: until((tmp_path / "ready").exists))
    assert one.exitcode == -signal.SIGKILL
    assert "did not end within 0.2 s and was killed" in caplog.text


def test_a_thread_with_a_stop_method_is_stopped(train_public):
    thread = Stoppable()
    train_public(
        [StartProcOrThread(thread)],
        step=lambda run, batch: None if thread.is_alive() else pytest.fail("it has ended"),
    )
    assert not thread.is_alive()


def test_a_thread_without_a_stop_method_keeps_running_with_a_warning(train_public, caplog):
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, name=name, daemon=name == "daemon") for name in ("plain", "daemon")]
    train_public([StartProcOrThread(threads)])
    end.set()
    for thread in threads:
        thread.join()
    said = [line for line in caplog.messages if "cannot be stopped" in line]
    assert said == [
        "Thread daemon cannot be stopped and keeps running",
        "Thread plain cannot be stopped and keeps running; the program does not exit until the thread ends",
    ]


def test_without_stop_at_last_a_process_keeps_running(train_public):
    one = process(sleep)
    train_public([StartProcOrThread(one, stop_at_last=False)])
    assert one.is_alive()
    one.kill()
    one.join()


# A second run


@pytest.mark.parametrize("make", [partial(process, sleep), Stoppable])
def test_a_started_process_or_thread_cannot_be_started_again(train_public, make):
    callback = StartProcOrThread(make())
    train_public([callback])
    with pytest.raises(ValueError, match=r"was already started and cannot be started again\.\n  give +a function that creates"):
        train_public([callback])


def test_a_function_creates_a_new_thread_for_each_run(train_public):
    made = []

    def make():
        made.append(Stoppable())
        return made[-1]

    callback = StartProcOrThread(make)
    for _ in range(2):
        train_public([callback])
    assert len(made) == 2
    assert not any(thread.is_alive() for thread in made)


def test_a_class_works_as_a_function(train_public):
    train_public([StartProcOrThread(Stoppable)])


# A worker that dies


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(start_proc_or_thread, "CHECK_EVERY_SECONDS", 0.0)


def test_a_process_that_dies_is_reported_once(train_public, looks_often, caplog, tmp_path):
    one = process(fail)
    train_public([StartProcOrThread(one), JSONWriter()], batches=4, workdir=tmp_path, step=lambda run, batch: one.join())
    assert [line for line in caplog.messages if "died" in line] == [
        f"SpawnProcess {one.name} died with exit code 3; the run continues"
    ]
    assert (tmp_path / "events.jsonl").read_text().count("process died") == 1


def test_a_process_that_dies_stops_the_run_if_requested(train_public, looks_often):
    one = process(fail)
    run = train_public([StartProcOrThread(one, if_it_dies="stop")], batches=4, step=lambda run, batch: one.join())
    assert run.step == 1
    assert run._verdicts.stop


def test_a_process_that_exits_with_code_0_is_not_reported(train_public, looks_often, until, caplog):
    callback = StartProcOrThread([sys.executable, "-c", ""], if_it_dies="stop")
    (command,) = callback._workers
    assert train_public([callback], batches=4, step=lambda run, batch: until(lambda: not command.is_alive())).step == 4
    assert "died" not in caplog.text


ANSWERS = """
import pathlib, time
while not pathlib.Path("asked").exists():
    time.sleep(0.01)
pathlib.Path("answered").touch()
time.sleep(600)
"""
CTRL_C = """
import os, pathlib, signal, sys, time
from hookpoint import Loop
from hookpoint.callbacks import StartProcOrThread

callback = StartProcOrThread([sys.executable, "-c", sys.argv[1]])
try:
    with Loop([callback], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches(range(5)):
            if batch == 2:
                os.killpg(0, signal.SIGINT)
                pathlib.Path("asked").touch()
                while callback._running[0].is_alive() and not pathlib.Path("answered").exists():
                    time.sleep(0.01)
                print(pathlib.Path("answered").exists())
except KeyboardInterrupt:
    print("interrupted after", run.step, callback._workers[0].exitcode)
"""


def test_ctrl_c_ends_the_run_and_the_run_stops_the_process(tmp_path):
    command = [sys.executable, "-c", CTRL_C, ANSWERS]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True, check=True, cwd=tmp_path)
    assert done.stdout == "True\ninterrupted after 3 -15\n", done.stderr


# Arguments


@pytest.mark.parametrize("bad", [3, "ls -l", [3], None, ["a", 3]])
def test_an_argument_that_cannot_be_started_raises(bad):
    with pytest.raises(ValueError, match="StartProcOrThread cannot start"):
        StartProcOrThread(bad)


def test_other_invalid_arguments_raise():
    with pytest.raises(ValueError, match="startable is empty"):
        StartProcOrThread([])
    with pytest.raises(ValueError, match=r"if_it_dies must be 'log' or 'stop', got 'die'"):
        StartProcOrThread(["ls"], if_it_dies="die")
    with pytest.raises(ValueError, match=r"stop_seconds must be a finite number >= 0, got -1"):
        StartProcOrThread(["ls"], stop_seconds=-1)


def test_a_callback_with_a_command_can_be_pickled_during_a_run(train_public):
    callback = StartProcOrThread(["sleep", "600"])
    train_public([callback], step=lambda run, batch: pickle.loads(pickle.dumps(callback)))
