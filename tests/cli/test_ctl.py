"""`hookpoint ctl` without a run in progress: wrong usage, finished runs, and `forget`."""

from __future__ import annotations

import json

import pytest

from hookpoint.steering.command_journal import JournalEntry
from hookpoint.steering.control_folder import ControlFolder
from hookpoint.storage.workdir.lock import WorkdirLock


def test_a_finished_run_is_reported_in_one_line(command, train_run):
    train_run()
    for arguments in (["set", "x=1"], ["pause"], []):
        said = command("ctl", "mine", *arguments, code=1).stderr
        assert "no process is training in runs/mine" in said
        assert len(said.splitlines()) == 1


def test_a_hint_quotes_a_path_with_spaces(command, train_run):
    train_run("my run")
    assert "hookpoint show 'runs/my run'" in command("ctl", "my run", "pause", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pasue"], "there is no command pasue; did you mean pause?"),
        (["lr=0.1"], "there is no command lr=0.1; did you mean set lr=0.1?"),
        (["set"], "expected: hookpoint ctl RUN set NAME=VALUE..."),
        (["set", "alpha"], "expected NAME=VALUE, got alpha"),
        (["pause", "now"], "expected: hookpoint ctl RUN pause\n"),
        (["log-every"], "expected: hookpoint ctl RUN log-every STEPS"),
        (["log-every", "0"], "expected: hookpoint ctl RUN log-every STEPS"),
        (["trace", "few"], "expected: hookpoint ctl RUN trace STEPS"),
        (["forget", "-1"], "No such option"),
        (["forget", "one"], "expected: hookpoint ctl RUN forget NUMBER"),
        (["save", "a", "b"], "expected: hookpoint ctl RUN save [TAG]"),
        (["pause", "--expect", "x=1"], "--expect needs the command set"),
        (["--no-wait"], "--no-wait needs a command"),
        (["\x1b[2J"], "there is no command ?[2J"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_reported_in_one_line(command, train_run, arguments, message):
    train_run()
    said = command("ctl", "mine", *arguments, code=2).stderr
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.fixture
def journalled(train_run):
    """A finished run with two commands in its journal that no checkpoint contains."""
    folder = train_run()
    with ControlFolder.create(folder) as files:
        for number in (1, 2):
            values = {"values": {"\x1b[2Jalpha": number / 4}}
            files.journal.append(JournalEntry(number, 100, 100, 0, f"{number:020d}-00000000", "set", values, "me@here:7"))
    return folder


def test_the_journal_of_a_finished_run_is_listed(command, journalled):
    listed = command("ctl", "mine", code=1).stdout.split("journal\n")[1]
    assert [" ".join(line.split()) for line in listed.splitlines()] == [
        "1 step 100 set ?[2Jalpha=0.25 replayed by a resume me@here:7",
        "2 step 100 set ?[2Jalpha=0.5 replayed by a resume me@here:7",
    ]


def test_forget_removes_a_command_from_the_journal(command, journalled):
    assert command("ctl", "mine", "forget", "1").stdout == "forgot 1: set ?[2Jalpha=0.25, at step 100\n"
    assert json.loads(command("ctl", "mine", "forget", "2", "--json").stdout)["status"] == "forgotten"
    with ControlFolder(journalled) as files:
        assert files.journal.entries() == []
        assert files.journal.last_number() == 2


@pytest.mark.parametrize("number", [3, 0])
def test_forget_requires_a_number_in_the_journal(command, journalled, number):
    if number == 3:
        assert "has no command 3" in command("ctl", "mine", "forget", 3, code=1).stderr
    else:
        assert "expected: hookpoint ctl RUN forget NUMBER" in command("ctl", "mine", "forget", 0, code=2).stderr


def test_forget_is_refused_while_a_process_is_training(command, journalled):
    lock = WorkdirLock(journalled)
    lock.acquire()
    try:
        assert "forget was refused: " in command("ctl", "mine", "forget", "1", code=1).stderr
    finally:
        lock.release()
    with ControlFolder(journalled) as files:
        assert len(files.journal.entries()) == 2


def test_a_run_without_a_journal_has_nothing_to_forget(command, train_run):
    train_run()
    assert "has no" in command("ctl", "mine", "forget", "1", code=1).stderr
