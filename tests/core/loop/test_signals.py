from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading

import pytest

from hookpoint.core.loop.loop import Loop
from hookpoint.core.run.current_run import current_run

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(scope="module", autouse=True)
def hangups_heard():
    """Restore SIGHUP, which is ignored under nohup: processes inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


# A process that trains, sends itself a signal in the body, and prints what happens. `body` runs after each batch is fetched.
PROGRAM = """
import os, signal, sys
from hookpoint import Callback
from hookpoint.core.loop.loop import Loop

def send(name):
    os.kill(os.getpid(), getattr(signal, name))

def say(*words):
    print(*words, flush=True)

class Say(Callback):
    def on_train_iter_end(self, run): say("iter end", run.step)
    def on_save(self, run, path): say("saved", path)
    def on_train_epoch_end(self): say("train end")
    def on_val_epoch_end(self): say("val end")
    def on_trigger(self): say("triggered")
    def on_epoch_end(self, run): say("epoch end", run.epoch_complete)
    def on_exception(self, error): say("exception", type(error).__name__)
    def on_run_end(self): say("run end")

class Memory:
    def save(self, state, *, step, tags):
        return f"{{step}} {{tags}}"

before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
try:
    with Loop([Say()], store=Memory() if {store} else None) as run:
        for epoch in run.epochs(2):
            for batch in run.batches("abc"):
                say("batch", batch)
                {body}
                say("body done")
            for value in run.batches("xyz", mode="val"):
                {validate}
            {after}
finally:
    say("put back", before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])
"""


# Runs each program in a separate process, without starting an interpreter for it.
SERVER = """
import json, os, sys
import hookpoint.core.loop.loop

for line in sys.stdin:
    program, *written = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in enumerate(written, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        exec(program, {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()
    assert process.returncode == 0


@pytest.fixture
def run_program(server, tmp_path):
    """Run a program in a process; return its exit code, the lines it printed, and its errors."""

    def go(program):
        number = len(list(tmp_path.iterdir()))
        out, err = tmp_path / f"{number}.out", tmp_path / f"{number}.err"
        server.stdin.write(json.dumps([program, str(out), str(err)]) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline()), out.read_text().splitlines(), err.read_text()

    return go


@pytest.fixture
def train(run_program):
    def go(body="pass", *, validate="pass", after="pass", store=False, before=""):
        return run_program(before + PROGRAM.format(body=body, validate=validate, after=after, store=store))

    return go


@pytest.mark.parametrize(("name", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_the_first_signal_finishes_the_step_and_runs_the_end_points(name, code, train):
    ended, lines, errors = train(f"if batch == 'b': send('{name}')")
    assert ended == code
    assert lines == [
        "batch a",
        "body done",
        "iter end 1",
        "batch b",
        "body done",
        "iter end 2",
        "train end",
        "epoch end False",
        "run end",
        "put back True",
    ]
    assert ("KeyboardInterrupt" in errors) == (name == "SIGINT")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_the_second_signal_ends_the_run_at_once(name, code, train):
    ended, lines, _ = train(f"send('{name}'); say('first'); send('{name}'); say('never')")
    assert ended == code
    error = "KeyboardInterrupt" if name == "SIGINT" else "SystemExit"
    assert lines == ["batch a", "first", f"exception {error}", "run end", "put back True"]


@pytest.mark.parametrize(
    ("name", "store", "expected"),
    [
        ("SIGINT", False, "Ctrl-C: stopping after this step. Press Ctrl-C again to exit now."),
        (
            *("SIGINT", True),
            "Ctrl-C: stopping after this step, then saving. Press Ctrl-C again to exit now without saving.",
        ),
        ("SIGTERM", True, "SIGTERM: stopping after this step, then saving."),
    ],
)
def test_the_first_signal_prints_at_once_what_happens_next(name, store, expected, train):
    _, _, errors = train(f"if batch == 'b': send('{name}'); sys.stderr.write('still in the step\\n')", store=store)
    assert errors.splitlines()[:2] == [expected, "still in the step"]


def test_a_signal_in_validation_prints_that_the_pass_finishes_first(train):
    _, _, errors = train(validate="value == 'y' and send('SIGTERM')", store=True)
    assert errors == "SIGTERM: stopping after this pass, then saving.\n"


RESUMABLE = """
import os, signal, sys
from hookpoint import Loop
from hookpoint.callbacks import ModelSaver
with Loop([ModelSaver()], workdir={workdir!r}, resume={resume!r}, extra_callbacks=[], monitors=[]) as run:
    for _ in run.epochs(1):
        for batch in run.batches(range(3)):
            if batch == 1:
                os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.parametrize(
    ("name", "resume", "last"),
    [
        ("SIGINT", "auto", "saved step-00000002; run the script again to resume"),
        ("SIGTERM", "auto", "saved step-00000002; run the script again to resume"),
        ("SIGINT", "never", "KeyboardInterrupt"),
    ],
)
def test_the_last_line_names_the_checkpoint_if_the_script_would_resume(name, resume, last, run_program, tmp_path):
    workdir = str(tmp_path / "run")
    _, _, errors = run_program(RESUMABLE.format(workdir=workdir, resume=resume, name=name))
    assert errors.splitlines()[-1] == last


def test_with_a_store_the_state_is_saved_before_the_end_points(train):
    _, lines, _ = train("if batch == 'b': send('SIGTERM')", store=True)
    assert lines[5:] == [
        "iter end 2",
        "saved 2 ['signal']",
        "train end",
        "epoch end False",
        "run end",
        "put back True",
    ]


def test_without_a_store_a_signal_ends_the_validation(train):
    ended, lines, _ = train(validate="say(value); value == 'y' and send('SIGTERM')")
    assert ended == 143
    assert lines[-6:] == ["x", "y", "val end", "epoch end False", "run end", "put back True"]


def test_with_a_store_a_signal_in_validation_saves_after_the_epoch(train):
    ended, lines, _ = train(validate="say(value); value == 'y' and send('SIGTERM')", store=True)
    assert ended == 143
    assert lines[-8:] == [
        "y",
        "z",
        "val end",
        "epoch end True",
        "triggered",
        "saved 3 ['signal']",
        "run end",
        "put back True",
    ]


def test_validation_after_a_break_also_finishes_before_a_signal_ends_the_run(train):
    _, lines, _ = train("if batch == 'b': break", validate="say(value); value == 'y' and send('SIGTERM')", store=True)
    assert lines[-7:-2] == ["y", "z", "val end", "epoch end False", "saved 2 ['signal']"]


def test_a_second_signal_in_validation_ends_the_run_at_once(train):
    ended, lines, _ = train(validate="say(value); value != 'z' and send('SIGTERM')", store=True)
    assert ended == 143
    assert lines[-5:] == ["x", "y", "exception SystemExit", "run end", "put back True"]


def test_a_signal_between_passes_saves_after_the_epoch(train):
    ended, lines, _ = train(after="send('SIGTERM')", store=True)
    assert ended == 143
    assert lines[-6:] == ["val end", "epoch end True", "triggered", "saved 3 ['signal']", "run end", "put back True"]


@pytest.mark.parametrize("place", ["body", "validate", "after"])
def test_sigusr1_saves_and_the_run_continues(place, train):
    once = "os.environ.pop('SEND', None) and send('SIGUSR1')"
    ended, lines, _ = train(**{place: once}, store=True, before="import os; os.environ['SEND'] = '1'")
    assert ended == 0
    saved = [line for line in lines if line.startswith("saved")]
    assert saved == ["saved 1 ['manual']" if place == "body" else "saved 3 ['manual']"]
    assert lines.count("batch a") == 2


def test_sigusr1_is_not_handled_without_a_store_or_with_another_handler(train):
    ended, _, _ = train("send('SIGUSR1')")
    assert ended == -signal.SIGUSR1
    ours = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('theirs', flush=True))"
    ended, lines, _ = train("send('SIGUSR1')", store=True, before=ours)
    assert ended == 0
    assert lines.count("theirs") == 6


def test_a_signal_in_the_last_batch_completes_the_epoch_and_starts_no_new_epoch(train):
    ended, lines, _ = train("if batch == 'c': send('SIGTERM')")
    assert ended == 143
    assert lines[-5:] == ["train end", "epoch end True", "triggered", "run end", "put back True"]
    assert lines.count("batch a") == 1


def test_an_error_in_the_body_takes_precedence_over_a_signal(train):
    ended, lines, errors = train("send('SIGTERM'); raise ValueError('body')")
    assert ended == 1
    assert lines == ["batch a", "exception ValueError", "run end", "put back True"]
    assert "ValueError: body" in errors


def test_a_signal_that_is_ignored_stays_ignored(train):
    ended, lines, _ = train("send('SIGTERM')", before="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    assert ended == 0
    assert lines.count("body done") == 6


def test_signal_handlers_are_restored_after_an_error():
    before = [signal.getsignal(number) for number in WATCHED]
    with pytest.raises(ValueError, match="body"), Loop():
        assert all(signal.getsignal(number) not in before for number in WATCHED)
        raise ValueError("body")
    assert [signal.getsignal(number) for number in WATCHED] == before


def test_a_nested_run_restores_the_signal_handlers_of_the_outer_run():
    with Loop():
        outer = [signal.getsignal(number) for number in WATCHED]
        with Loop():
            assert [signal.getsignal(number) for number in WATCHED] != outer
        assert [signal.getsignal(number) for number in WATCHED] == outer


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_overlapping_runs_restore_the_original_signal_handlers(order):
    """For example, runs in asyncio tasks end in any order."""
    before = [signal.getsignal(number) for number in WATCHED]
    loops = [Loop() for _ in order]
    for loop in loops:
        loop.__enter__()
    for number in order:
        loops[number].__exit__(None, None, None)
    assert [signal.getsignal(number) for number in WATCHED] == before
    assert current_run() is None


def test_no_signal_handlers_are_installed_in_a_thread():
    before = [signal.getsignal(number) for number in WATCHED]
    seen = []

    def work():
        with Loop():
            seen.extend(signal.getsignal(number) for number in WATCHED)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert seen == before


IN_A_TERMINAL = """
import sys, time
from hookpoint import Loop
from hookpoint.callbacks import ModelSaver
with Loop([ModelSaver()], workdir=sys.argv[1]) as run:
    for _ in run.epochs(1):
        for batch in run.batches(range(60000)):
            time.sleep(0.001)
            if run.step == 3:
                open(sys.argv[1] + "/ready", "w").close()
"""


def test_closing_the_terminal_stops_and_saves_the_run(tmp_path):
    """The progress bar draws in the terminal until it is closed; drawing later does not fail the run."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", IN_A_TERMINAL, str(tmp_path)])
    while not (tmp_path / "ready").exists():
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 1000)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    told = json.loads((tmp_path / "run.json").read_text())
    assert (told["status"], told["reason"]) == ("stopped", "SIGHUP was received")
    assert (tmp_path / "checkpoints" / "last").exists()


def test_a_closed_stderr_does_not_end_the_run(tmp_path):
    program = """
import sys
from hookpoint import Loop
sys.stderr.close()
with Loop([], workdir=sys.argv[1]) as run:
    for epoch in run.epochs(2):
        for batch in run.batches([1, 2]):
            run.log(loss=1.0)
print(run.iteration)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "4\n")
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"
