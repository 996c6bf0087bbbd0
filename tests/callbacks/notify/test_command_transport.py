from __future__ import annotations

import os
import sys
import threading
from time import monotonic, sleep

import pytest

from hookpoint.callbacks.notify._command import Command
from hookpoint.callbacks.notify._command_transport import CommandTransport
from hookpoint.callbacks.notify._sender import SendFailed


def transport(command, timeout_seconds=60, **given):
    return CommandTransport(Command(command, texts=["run"], **given), timeout_seconds)


def is_alive(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition):
    deadline = monotonic() + 60
    while not condition():
        assert monotonic() < deadline
        sleep(0.005)


def test_a_command_runs_with_its_arguments(tmp_path):
    transport(["touch", f"{tmp_path}/{{run}}"]).send({"run": "; touch x"})
    assert [path.name for path in tmp_path.iterdir()] == ["; touch x"]


def test_a_command_gets_no_input_and_its_output_is_not_shown(capfd):
    transport("cat; echo out; echo err >&2", shell=True).send({"run": ""})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("exit 3", "the command exited with code 3"),
        ("echo first >&2; echo 'the last \x1b[31mline' >&2; exit 6", "the command exited with code 6: the last ?[31mline"),
        ("yes | head -c 300000 >&2; exit 1", "the command exited with code 1: y"),
    ],
)
def test_a_failure_reports_the_last_line_of_stderr(command, says):
    with pytest.raises(SendFailed) as caught:
        transport(command, shell=True).send({"run": ""})
    assert str(caught.value) == says


def test_a_missing_program_raises():
    with pytest.raises(SendFailed, match=r"^no-such-program could not be started: No such file or directory$"):
        transport(["/nowhere/no-such-program", "--password=secret"]).send({"run": ""})


def test_errors_do_not_contain_arguments():
    with pytest.raises(SendFailed) as caught:
        transport(["false", "--password=secret", "{run}"]).send({"run": "x"})
    assert str(caught.value) == "false exited with code 1"


@pytest.mark.parametrize(
    ("run", "says"), [("a\0b", "could not be started: embedded null byte"), ("-x", "was not run: {run} starts")]
)
def test_a_value_that_cannot_be_an_argument_raises(run, says):
    with pytest.raises(SendFailed) as caught:
        transport(["echo", "{run}"]).send({"run": run})
    assert says in str(caught.value)


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path):
    script = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"
    with pytest.raises(SendFailed, match=r"^the command was killed after 2 s$"):
        transport(script, 2, shell=True).send({"run": ""})
    for name in ("pid", "child"):
        pid = int((tmp_path / name).read_text())
        wait_until(lambda pid=pid: not is_alive(pid))


def test_a_hanging_command_can_be_cancelled(tmp_path):
    hangs, errors = (
        transport(f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 1000", shell=True),
        [],
    )

    def send():
        try:
            hangs.send({"run": ""})
        except SendFailed as error:
            errors.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    wait_until((tmp_path / "pid").exists)
    hangs.cancel()
    thread.join(60)
    assert errors == ["the command exited with code -9"]
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_nothing_is_started_after_cancel(tmp_path):
    cancelled = transport(["touch", f"{tmp_path}/x"])
    cancelled.cancel()
    with pytest.raises(SendFailed, match="cancelled"):
        cancelled.send({"run": ""})
    assert list(tmp_path.iterdir()) == []


def test_background_processes_of_the_command_are_not_waited_for(tmp_path):
    transport(f"sleep 1000 & echo $! > {tmp_path}/child", shell=True).send({"run": ""})
    os.kill(int((tmp_path / "child").read_text()), 9)


def test_a_command_runs_in_its_own_process_group(tmp_path):
    program = f"import os, pathlib; pathlib.Path({str(tmp_path / 'group')!r}).write_text(str(os.getpgrp()))"
    transport([sys.executable, "-S", "-c", program]).send({"run": ""})
    assert int((tmp_path / "group").read_text()) != os.getpgrp()


def test_a_command_runs_even_if_its_output_cannot_be_captured(tmp_path, monkeypatch):
    def refuse():
        raise OSError("no room")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    transport(f"touch {tmp_path}/x", shell=True).send({"run": ""})
    assert (tmp_path / "x").exists()
    with pytest.raises(SendFailed, match=r"^false exited with code 1$"):
        transport("false").send({"run": ""})
