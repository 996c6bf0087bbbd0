"""The journal is on disk before a command is applied, and readable after a kill."""

from __future__ import annotations

import errno
import os

import pytest

from hookpoint.steering.command_journal import JournalEntry


def entry(number, **fields):
    values = {
        "iteration": 10 * number,
        "step": 10 * number,
        "epochs": 0,
        "id": f"id {number}",
        "do": "set",
        "args": {},
        **fields,
    }
    return JournalEntry(number, **values)


def test_entries_are_read_in_order(folder):
    journal = folder.journal
    assert (journal.entries(), journal.last_number()) == ([], 0)
    for number in (1, 2):
        journal.append(entry(number, args={"values": {"lr": 0.1}}, by="me"))
    assert journal.entries() == [entry(number, args={"values": {"lr": 0.1}}, by="me") for number in (1, 2)]
    assert journal.last_number() == 2


def test_a_torn_line_is_ignored_and_terminated(folder):
    journal, path = folder.journal, folder.path / "journal.jsonl"
    journal.append(entry(1))
    with path.open("ab") as file:
        file.write(b'{"number": 2, "iter')
    assert [one.number for one in journal.entries()] == [1]
    journal.append(entry(2))
    assert [one.number for one in journal.entries()] == [1, 2]


@pytest.mark.parametrize("line", [b"[]", b"null", b'{"number": 2}', b'{"number": 2, "order": 3}', b"[" * 5000, b"\xff"])
def test_lines_that_are_not_entries_are_ignored(folder, line):
    folder.journal.append(entry(1))
    with (folder.path / "journal.jsonl").open("ab") as file:
        file.write(line + b"\n")
    assert [one.number for one in folder.journal.entries()] == [1]


def test_a_forgotten_entry_keeps_its_number(folder):
    journal = folder.journal
    journal.append(entry(1)), journal.append(entry(2))
    journal.forget(2, by="me")
    assert [one.number for one in journal.entries()] == [1]
    assert journal.last_number() == 2


def test_a_link_is_not_followed(folder, tmp_path):
    (tmp_path / "elsewhere").touch()
    (folder.path / "journal.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        folder.journal.append(entry(1))


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("broken", [["fsync"], ["fsync", "ftruncate"]], ids=" and ".join)
def test_an_entry_that_could_not_be_written_is_not_replayed(folder, monkeypatch, broken):
    journal = folder.journal
    journal.append(entry(1))
    with monkeypatch.context() as patch:
        for name in broken:
            patch.setattr(os, name, full_disk)
        with pytest.raises(OSError, match="No space left"):
            journal.append(entry(2))
        assert [one.number for one in journal.entries()] == [1]
    journal.append(entry(3))
    assert [one.number for one in journal.entries()] == [1, 3]
    assert journal.last_number() == 3


def test_a_run_does_not_replay_a_command_that_could_not_be_journalled(fit, cuts, cut_off, monkeypatch):
    def fill(run):
        inode = (run.workdir / ".control" / "journal.jsonl").stat().st_ino
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: full_disk() if os.fstat(file).st_ino == inode else sync(file))

    def rate(value):
        return ("set", {"values": {"lr": value}})

    def make_room(run):
        monkeypatch.undo()

    commands = {5: [rate(0.05)], 6: [fill, rate(0.01)], 7: [make_room, rate(0.02)]}
    with pytest.raises(cut_off):
        fit(commands, save_every=4, callbacks=[cuts(8)])
    resumed = fit(save_every=4)
    assert [(event["status"], event.get("replayed", False)) for event in resumed.events()] == [
        ("applied", False),
        ("refused", False),
        ("applied", False),
        ("applied", True),
        ("applied", True),
    ]
    assert "it cannot be written to the journal: OSError: [Errno 28]" in resumed.events()[1]["reason"]
    assert [rate for _, rate, _ in resumed.steps] == [0.1, 0.05, 0.05, *[0.02] * 5]
