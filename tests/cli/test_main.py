"""The command line: imports, errors and exit codes."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import tomllib
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from rich.cells import cell_len

from hookpoint.cli import main as module
from hookpoint.cli.main import COMMANDS, main
from hookpoint.run_folder.command_error import CommandError

PROBE = """
import sys
from hookpoint.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    sys.stderr.write(f"{end.code} {sorted(name for name in sys.modules if name in WATCHED or name.startswith(WATCHED))}")
"""


def loaded(tmp_path, watched, *arguments):
    """Return the exit code of a command and the modules that it loaded."""
    program = PROBE.replace("WATCHED", repr(watched))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    code, _, names = done.stderr.splitlines()[-1].partition(" ")
    return int(code), names


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs"],
        ["show", "mine"],
        ["tail", "mine"],
        ["ctl", "mine"],
        ["export", "mine", "-o", "-"],
        ["verify", "mine"],
        ["clean", "mine", "--dry-run"],
        ["explain", "their:mine"],
        ["points"],
        ["--help"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_command_loads_torch(train_run, tmp_path, arguments):
    train_run()
    (tmp_path / "their.py").write_text("from hookpoint import callbacks as cb\nmine = [cb.ModelSaver()]\n")
    code = int(arguments[0] == "ctl")  # no run is in progress
    assert loaded(tmp_path, ("torch", "numpy", "hookpoint.engine"), *arguments) == (code, "[]")


def test_help_loads_no_command(tmp_path):
    code, names = loaded(tmp_path, ("hookpoint.", "rich"), "--help")
    assert code == 0
    allowed = {"hookpoint._exports", "hookpoint._version", "hookpoint.cli", "hookpoint.cli.main", "hookpoint.cli._output"}
    assert set(re.findall(r"'([^']+)'", names)) <= allowed | {
        "hookpoint._gc_pause",
        "hookpoint.core",
        "hookpoint.core.text",
        "hookpoint.core.text.plain_values",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(command, name):
    if name == "plot":
        pytest.importorskip("hookpoint.plots")
    shown = command(name, "--help").stdout
    assert f"Usage: hookpoint {name} " in shown
    assert "\b" not in shown
    assert f"  hookpoint {name}" in shown.split("Usage", 1)[1]
    assert command(name, "-h").stdout == shown


def test_help_lists_commands_and_exit_codes(command):
    shown = command("--help").stdout
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert all(f"  {code} " in shown for code in (0, 1, 2, 65, 69, 70, 73, 75, 130))
    assert re.fullmatch(r"hookpoint \S+\n", command("--version").stdout)
    assert command(code=2).stderr.startswith("Usage: hookpoint ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shw"], "hookpoint: there is no command shw; did you mean show? (hookpoint --help)"),
        (["xyz"], "hookpoint: there is no command xyz (hookpoint --help)"),
        (["show"], "hookpoint: Missing argument 'RUN' (hookpoint show --help)"),
        (["runs", "--srt"], "(hookpoint runs --help)"),
        (["runs", "--sort", "soup"], "(hookpoint runs --help)"),
        (["--soup"], "(hookpoint --help)"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_with_a_suggestion(command, arguments, message):
    stderr = command(*arguments, code=2).stderr
    assert message in stderr
    assert len(stderr.splitlines()) == 1


def test_control_characters_of_arguments_are_not_printed(command):
    for arguments in (["\x1b[2J"], ["show", "\x1b[2J"], ["runs", "\x1b[2J"], ["points", "\x1b[2J"], ["explain", "\x1b[2J:x"]):
        assert "\x1b" not in command(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandError("no", 73), 73, "hookpoint: no\n"),
        (OSError(5, "Input/output error", "x"), 65, "hookpoint: x: Input/output error\n"),
        (OSError(28, "No space left on device"), 73, "hookpoint: No space left on device\n"),
        (MemoryError(), 65, "hookpoint: not enough memory\n"),
        (click.FileError("x", "gone"), 1, "hookpoint: Could not open file 'x': gone\n"),
        (RuntimeError("soup\nsoup"), 70, "hookpoint: RuntimeError: soup Soup (a bug in hookpoint; --debug shows"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda one: type(one).__name__,
)
def test_errors_have_a_message_and_an_exit_code(command, monkeypatch, error, code, message):
    @click.command("points")
    def fail():
        raise error

    monkeypatch.setattr(module.Commands, "get_command", lambda self, ctx, name: fail)
    stderr = command("points", code=code).stderr
    assert stderr.startswith(message)
    assert "Traceback" not in stderr


def test_debug_shows_the_traceback(process, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    done = process("explain", "broken:x", text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (65, 1)
    for arguments in (["--debug", "explain", "broken:x"], ["explain", "broken:x", "--debug"]):
        done = process(*arguments, text=True)
        assert "Traceback" in done.stderr
        assert "ZeroDivisionError" in done.stderr
    assert "--debug" not in process("--help", text=True).stdout


def test_a_closed_pipe_is_quiet(tmp_path, train_run):
    train_run(epochs=1)
    path = tmp_path / "runs" / "mine" / "scalars.jsonl"
    line = path.read_text().splitlines(keepends=True)[0]
    path.write_text("".join(line.replace('"step": 2', f'"step": {number}') for number in range(50_000)))
    command = [sys.executable, "-m", "hookpoint", "export", "mine", "-o", "-", "--format", "jsonl"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=250) == 0


def test_an_ascii_terminal_causes_no_error(process, tmp_path):
    folder = tmp_path / "runs" / "größe-深層"
    folder.mkdir(parents=True)
    (folder / "scalars.jsonl").write_text('{"step": 1, "epoch": 1, "time": 1.0, "at": "epoch", "loss": 1.0}\n')
    done = process("runs", environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stderr == b""


class TestTerminal:
    """On a real terminal, 80 columns wide."""

    def shown(self, tmp_path, *arguments, **environment):
        parent, child = pty.openpty()
        termios.tcsetwinsize(child, (24, 80))
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")} | environment
        command = [sys.executable, "-m", "hookpoint", *arguments]
        with subprocess.Popen(
            command, cwd=tmp_path, stdin=child, stdout=child, stderr=subprocess.DEVNULL, env={"TERM": "xterm", **environment}
        ) as process:
            os.close(child)
            text = b""
            while True:
                select.select([parent], [], [], 60)
                try:
                    piece = os.read(parent, 65_536)
                except OSError:
                    break
                if not piece:
                    break
                text += piece
            assert process.wait(timeout=250) == 0
        os.close(parent)
        return text.decode().replace("\r\n", "\n")

    @pytest.fixture
    def wide(self, train_run, tmp_path):
        train_run("a-run-with-a-name-that-is-rather-long-for-a-table-of-eighty-columns", epochs=2)
        train_run("short", values={"a-metric-with-a-name-of-quite-some-length/and-a-part": 1.0, "another": 0.123456789})
        (tmp_path / "their.py").write_text(
            "from hookpoint import callbacks as cb\n"
            "mine = [cb.ModelSaver(), cb.MinSaver('val_loss'), cb.EarlyStopping('val_loss', patience=3, on_error='warn')]\n"
        )

    @pytest.mark.parametrize(
        "arguments",
        [
            ["runs"],
            ["show", "short"],
            ["tail", "short"],
            ["points"],
            ["points", "on_epoch_end"],
            ["verify", "short"],
            ["clean", "short", "--dry-run"],
            ["explain", "their:mine"],
        ],
        ids=" ".join,
    )
    def test_no_line_is_wider_than_the_terminal(self, tmp_path, wide, arguments):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.shown(tmp_path, *arguments))
        assert "\x1b" not in plain
        lines = plain.splitlines()
        assert len(lines) > 2
        assert [line for line in lines if cell_len(line) > 80] == []

    def test_colours_can_be_turned_off(self, tmp_path, wide):
        assert "\x1b[32mfinished\x1b[0m" in self.shown(tmp_path, "runs")
        assert "\x1b" not in self.shown(tmp_path, "runs", NO_COLOR="1")
        assert "\x1b" not in self.shown(tmp_path, "runs", TERM="dumb")

    def test_piped_output_has_all_columns_and_no_colours(self, process, wide):
        text = process("runs", text=True, environment={"FORCE_COLOR": "1"}).stdout
        assert "\x1b" not in text
        assert "a-run-with-a-name-that-is-rather-long-for-a-table-of-eighty-columns  finished" in text
        assert text.splitlines()[0].split()[-1] == "duration"


class TestCompletion:
    def complete(self, *arguments):
        complete = ShellComplete(main, {}, "hookpoint", "_HOOKPOINT_COMPLETE")
        return [item.value for item in complete.get_completions(list(arguments[:-1]), arguments[-1])]

    def test_commands_and_runs_are_completed(self, train_run, tmp_path, monkeypatch):
        train_run("resnet", epochs=1)
        train_run("vit", epochs=1)
        monkeypatch.chdir(tmp_path)
        assert self.complete("sh") == ["show"]
        assert self.complete("show", "") == ["resnet", "vit"]
        assert self.complete("tail", "re") == ["resnet"]
        assert self.complete("verify", "v") == ["vit"]
        assert self.complete("show", "runs/re") == ["runs/re"]  # type dir: the shell completes it

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_each_shell_gets_its_completion_script(self, process, shell):
        if shell == "bash" and not os.path.exists("/bin/bash"):
            pytest.skip("bash is not installed")
        done = process(environment={"_HOOKPOINT_COMPLETE": f"{shell}_source"}, text=True)
        assert done.returncode == 0, done.stderr
        assert "_HOOKPOINT_COMPLETE" in done.stdout

    def test_bash_completes_a_run(self, process, train_run):
        train_run("resnet", epochs=1)
        asked = {"_HOOKPOINT_COMPLETE": "bash_complete", "COMP_WORDS": "hookpoint show re", "COMP_CWORD": "2"}
        assert process(environment=asked, text=True).stdout == "plain,resnet\n"


def test_the_entry_point_is_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"hookpoint": "hookpoint.cli.main:main"}
