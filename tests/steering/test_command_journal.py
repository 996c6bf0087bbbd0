"""The journal: on disk before a command is applied, readable after a kill."""

from __future__ import annotations

import pytest

from hookpoint.steering.command_journal import JournalEntry
from hookpoint.steering.control_folder import ControlFolder


@pytest.fixture
def folder(tmp_path):
    with ControlFolder.create(tmp_path) as opened:
        yield opened


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


def test_a_torn_line_is_ignored_and_ended(folder):
    journal, path = folder.journal, folder.path / "journal.jsonl"
    journal.append(entry(1))
    with path.open("ab") as file:
        file.write(b'{"number": 2, "iter')
    assert [one.number for one in journal.entries()] == [1]
    journal.append(entry(2))
    assert [one.number for one in journal.entries()] == [1, 2]


@pytest.mark.parametrize("line", [b"[]", b"null", b'{"number": 2}', b'{"number": 2, "order": 3}', b"[" * 5000, b"\xff"])
def test_lines_that_are_no_entries_are_ignored(folder, line):
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
