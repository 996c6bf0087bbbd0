from __future__ import annotations

import fcntl
import importlib.util
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from time import monotonic

import pytest

from hookpoint.callbacks import InjectShell
from hookpoint.callbacks.debug import _shells
from hookpoint.callbacks.debug.inject_shell import TriggerFile
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.loop import Loop

CTRL_D = "\x04"

PROGRAM = """
import sys, time
from pathlib import Path
from hookpoint import Every
from hookpoint.core.loop.loop import Loop
from hookpoint.callbacks import InjectShell, ProgressBar

shell, workdir, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
file = workdir / "INJECT_SHELL.tmp"
inject = InjectShell(shell=shell)
if when:
    inject.when(Every(steps=int(when[0])))
bar = ProgressBar(refresh_seconds=0.01)
with Loop([inject, bar], workdir=workdir, name="mine") as run:
    for epoch in run.epochs(3):
        if epoch < 3:
            file.touch()
        for batch in run.batches(range(4)):
            run.log(loss=batch)
        print("gone" if not file.exists() else "there", flush=True)
print("ended", run.epoch, run.step, run.store, sys.stdin.closed)
"""


class Typist:
    """A user at a terminal in which a program runs as its foreground job."""

    def __init__(self, *command, **environ):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", *map(str, command)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", "PYTHON_BASIC_REPL": "1", **environ},
        )
        os.close(theirs)
        self.written = ""
        self._seen = 0

    def wait_for(self, pattern):
        """Wait until the program writes a match of the pattern, after the previous match."""
        deadline = monotonic() + 60
        while not (found := re.compile(pattern).search(self.written, self._seen)):
            assert monotonic() < deadline, f"{pattern} did not come: {self.written!r}"
            if not self._read():
                raise AssertionError(f"{pattern} did not come: {self.written!r}")
        self._seen = found.end()
        return found

    def type(self, *lines):
        for line in lines:
            os.write(self.ours, line.encode())

    def answer(self, prompt, *lines):
        for line in lines:
            self.wait_for(prompt)
            self.type(line if line == CTRL_D else line + "\n")  # text after Ctrl-D would go to the next shell

    def finish(self):
        while self._read():
            pass
        os.close(self.ours)
        self.process.wait(60)
        return self.written[self._seen :]

    def _read(self):
        if select.select([self.ours], [], [], 1)[0]:
            try:
                piece = os.read(self.ours, 65536)
            except OSError:  # Linux raises when the other end is closed
                return False
            self.written += piece.decode(errors="replace")
            return bool(piece)
        return True


@pytest.fixture
def typist(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "work").mkdir()
    made = []

    def start(shell, *when, **environ):
        made.append(Typist(tmp_path / "program.py", shell, tmp_path / "work", *when, **environ))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_the_python_shell_sees_the_run_and_the_run_continues(typist):
    someone = typist("python")
    someone.answer(">>> ", "run.name, run.epoch, trainer is run", "run.store['seen'] = 7", "1 / 0", "exit()")
    assert "('mine', 1, True)" in someone.written
    assert "ZeroDivisionError" in someone.written
    someone.answer(">>> ", CTRL_D)  # the second epoch opens the shell again; Ctrl-D leaves it
    someone.wait_for(r"ended 3 12 \{'seen': 7\} False")
    someone.finish()
    assert someone.process.returncode == 0
    assert someone.written.count(_shells.HOW_TO_LEAVE) == 2


def test_the_file_is_removed_when_the_shell_opens(typist, tmp_path):
    someone = typist("python")
    someone.wait_for(">>> ")
    assert not (tmp_path / "work" / "INJECT_SHELL.tmp").exists()
    someone.type("exit\n", "quit()\n")
    someone.wait_for(r"exit\(\) or Ctrl-D resumes the run")
    someone.answer(">>> ", "exit()")
    someone.finish()
    assert someone.process.returncode == 0


@pytest.mark.parametrize("when", [(), (2,)], ids=["between epochs", "in an epoch"])
def test_the_progress_bar_pauses_while_the_shell_is_open(typist, when):
    someone = typist("python", *when)
    someone.wait_for(">>> ")
    opened = someone._seen
    someone.type("import sys, time; type(sys.stdout).__name__\n")
    someone.wait_for("'TextIOWrapper'")
    someone.type("time.sleep(0.3)\n")  # thirty times the refresh interval of the bar
    someone.wait_for(">>> ")
    shown = someone.written[opened : someone._seen]
    assert "epoch" not in shown
    assert "\x1b[2K" not in shown
    someone.type("exit()\n")
    someone.wait_for(r"epoch \d/3")  # the bar is drawn again
    someone.answer(">>> ", "exit()")
    someone.wait_for("ended 3 12")
    someone.finish()
    assert someone.process.returncode == 0


def test_ctrl_c_interrupts_shell_input_and_the_run_can_still_be_stopped(typist):
    someone = typist("python")
    # Short sleeps: a signal that arrives just before a long sleep would wait for its end.
    someone.answer(">>> ", "import time; print('zzz'); [time.sleep(0.01) for _ in iter(int, 1)]")
    someone.wait_for(r"\nzzz")
    someone.type("\x03")
    someone.wait_for("KeyboardInterrupt")
    someone.answer(">>> ", "run.epoch * 111", "exit()")
    assert "111" in someone.written
    someone.answer(">>> ", "run.stop('enough'); exit()")
    someone.wait_for("ended 2 8")
    someone.finish()
    assert someone.process.returncode == 0


@pytest.mark.parametrize("leave", ["c", "q", "exit", CTRL_D])
def test_the_debugger_sees_the_run_and_the_run_continues(typist, leave):
    someone = typist("pdb")
    someone.answer(r"\(Pdb\) ", "p run.name, run.epoch, trainer is run", leave)
    assert "('mine', 1, True)" in someone.written
    someone.answer(r"\(Pdb\) ", "up", leave)
    someone.wait_for("ended 3 12")
    someone.finish()
    assert someone.process.returncode == 0
    assert "BdbQuit" not in someone.written


def test_without_ipython_the_python_shell_opens(typist, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys\nsys.modules['IPython'] = None\n" + PROGRAM)
    someone = typist("ipython")
    someone.wait_for(r"IPython is not installed: pip install 'hookpoint\[shell\]'; using Python's shell")
    someone.answer(">>> ", "exit()", "exit()")
    someone.wait_for("ended 3 12")
    someone.finish()


@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_ipython_sees_the_run_and_the_run_continues(typist, tmp_path):
    someone = typist("ipython", IPYTHONDIR=str(tmp_path / "ipython"), IPY_TEST_SIMPLE_PROMPT="1")
    someone.answer(r"In \[\d+\]: ", "run.name, run.epoch, trainer is run", "run.store['seen'] = 7", "1 / 0", "exit")
    assert "('mine', 1, True)" in someone.written
    someone.answer(r"In \[\d+\]: ", "exit()")
    someone.wait_for(r"ended 3 12 \{'seen': 7\} False")
    someone.finish()
    assert someone.process.returncode == 0


# Without a terminal


@pytest.fixture
def train_with_file(train):
    """Train in this workdir; the first epoch begins by making the file."""

    def go(callback, workdir, *, epochs=2, make=lambda path: None):
        def begin(run):
            if run.epoch == 1:
                make(workdir / "INJECT_SHELL.tmp")

        return train([callback], epochs=epochs, epoch_begin=begin, workdir=workdir)

    return go


def test_without_a_terminal_one_line_is_logged_and_the_run_continues(train_with_file, tmp_path, caplog):
    run = train_with_file(InjectShell(), tmp_path, epochs=4, make=lambda path: path.touch())
    assert run.step == 12
    path = tmp_path / "INJECT_SHELL.tmp"
    assert caplog.messages == [f"{path} requests a shell, but there is no terminal; the run continues"]
    assert path.exists()


def test_a_background_process_opens_no_shell(typist, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import os\nos.setpgid(0, 0)\n" + PROGRAM)
    shell = tmp_path / "start.py"
    shell.write_text(
        "import os, sys\nif os.fork() == 0:\n    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])\nos.wait()\n"
    )
    someone = Typist(shell, program, "python", tmp_path / "work")
    someone.wait_for("there is no terminal; the run continues")
    someone.wait_for("ended 3 12")
    someone.finish()
    assert someone.process.returncode == 0


def opened(monkeypatch):
    """Pretend that there is a terminal, and replace the Python shell with one that only records its calls."""
    calls = []
    monkeypatch.setattr(_shells, "is_at_terminal", lambda: True)
    monkeypatch.setitem(_shells.SHELLS, "python", lambda run: calls.append(run.step))
    return calls


def test_the_shell_opens_once_per_file(train_with_file, tmp_path, monkeypatch):
    calls = opened(monkeypatch)
    train_with_file(InjectShell(shell="python"), tmp_path, epochs=3, make=lambda path: path.touch())
    assert calls == [3]


@pytest.mark.parametrize(
    ("make", "says"),
    [(lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link"), (lambda path: path.mkdir(), "is not a regular file")],
)
def test_a_link_or_directory_opens_no_shell(train_with_file, tmp_path, monkeypatch, caplog, make, says):
    calls = opened(monkeypatch)
    train_with_file(InjectShell(shell="python"), tmp_path, make=make)
    assert calls == []
    assert caplog.messages == [f"{tmp_path}/INJECT_SHELL.tmp {says}; it is ignored"]


def test_a_file_of_another_user_opens_no_shell(train_with_file, tmp_path, monkeypatch, caplog):
    calls = opened(monkeypatch)
    monkeypatch.setattr("hookpoint.callbacks.debug.inject_shell.os.geteuid", lambda: 12345)
    train_with_file(InjectShell(shell="python"), tmp_path, make=lambda path: path.touch())
    assert calls == []
    assert "belongs to user" in caplog.text


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_failing_shell_does_not_end_the_run(train_with_file, tmp_path, monkeypatch, caplog, error):
    def fails(run):
        raise error

    opened(monkeypatch)
    monkeypatch.setitem(_shells.SHELLS, "python", fails)
    assert train_with_file(InjectShell(shell="python"), tmp_path, make=lambda path: path.touch()).step == 6
    assert caplog.messages == [f"the shell failed with {type(error).__name__}: {error}; the run continues"]


def test_the_sigint_handler_of_the_run_is_restored_after_the_shell(tmp_path, monkeypatch):
    seen = []
    opened(monkeypatch)
    monkeypatch.setitem(_shells.SHELLS, "python", lambda run: seen.append(signal.getsignal(signal.SIGINT)))
    with Loop([InjectShell(shell="python")], workdir=tmp_path) as run:
        before = signal.getsignal(signal.SIGINT)
        (tmp_path / "INJECT_SHELL.tmp").touch()
        for _ in run.epochs(1):
            pass
        assert signal.getsignal(signal.SIGINT) == before
    assert seen == [signal.default_int_handler]


def test_a_workdir_is_required(train_with_file):
    with pytest.raises(BadLoop, match=r"^InjectShell needs a workdir"):
        train_with_file(InjectShell(), None)


@pytest.mark.parametrize("file", ["", ".", "..", "a/b", "/tmp/x", "a\\b", "a\0b", None])
def test_a_path_as_file_name_raises(file):
    with pytest.raises(ValueError, match="must be the name of a file in the workdir, not a path"):
        InjectShell(file)


def test_an_unknown_shell_raises():
    with pytest.raises(ValueError, match=r"InjectShell: shell must be 'ipython', 'pdb' or 'python', got 'bash'."):
        InjectShell(shell="bash")


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_a_missing_or_closed_stream_is_not_a_terminal(monkeypatch, stream, tmp_path):
    monkeypatch.setattr(sys, stream, None)
    assert not _shells.is_at_terminal()
    with open(tmp_path / "x", "w") as file:
        pass
    monkeypatch.setattr(sys, stream, file)
    assert not _shells.is_at_terminal()


@pytest.fixture
def file(tmp_path):
    return TriggerFile(tmp_path / "file")


def test_a_trigger_file_exists_until_it_is_removed(file, caplog):
    assert not file.exists()
    file.path.touch()
    assert file.exists()
    file.remove()
    assert not file.exists()
    assert not file.path.exists()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), "is a symbolic link"),
        (lambda path: path.symlink_to("/nowhere"), "is a symbolic link"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: (path.with_name("mine").touch(), os.link(path.with_name("mine"), path)), "has more than one hard link"),
    ],
)
def test_an_invalid_trigger_file_is_named_once_and_not_removed(file, caplog, make, says):
    make(file.path)
    assert not file.exists()
    assert not file.exists()
    assert caplog.messages == [f"{file.path} {says}; it is ignored"]
    assert os.path.lexists(file.path)


def test_a_trigger_file_of_another_user_is_ignored(file, caplog, monkeypatch):
    file.path.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert not file.exists()
    assert caplog.messages == [f"{file.path} belongs to user {os.getuid()}, but this process runs as user 12345; it is ignored"]


def test_a_new_invalid_trigger_file_is_named_again(file, caplog):
    for _ in range(2):
        file.path.mkdir()
        assert not file.exists()
        file.path.rmdir()
        assert not file.exists()
    assert len(caplog.messages) == 2


def test_a_trigger_file_that_cannot_be_checked_is_reported(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert not TriggerFile(tmp_path / "file" / "x").exists()
    assert caplog.messages == [f"{tmp_path}/file/x cannot be checked: Not a directory"]


def test_a_trigger_file_that_cannot_be_removed_is_reported(file, caplog):
    file.path.mkdir()
    file.remove()
    assert caplog.messages[0].startswith(f"{file.path} could not be removed: ")
