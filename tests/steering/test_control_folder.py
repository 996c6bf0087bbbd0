"""Control files are atomic, private, and safe to read whatever they contain."""

from __future__ import annotations

import json
import os

import pytest

from hookpoint import errors
from hookpoint.steering.control_answer import ControlAnswer
from hookpoint.steering.control_command import ControlCommand, new_id
from hookpoint.steering.control_folder import MAX_COMMAND_BYTES, ControlFolder

ATTEMPT = "0123456789abcdef" * 2


def command(do="pause", args=None, **fields):
    return ControlCommand(do, args or {}, ATTEMPT, **fields)


def put_raw(folder, data, command_id=None):
    command_id = command_id or new_id()
    (folder.path / "inbox" / f"{command_id}.json").write_bytes(data)
    return command_id


def test_a_command_is_read_as_it_was_sent(folder):
    sent = command("set", {"values": {"lr": 0.1}}, expect={"lr": 0.2}, seconds=5.0, by="me@here")
    folder.send(sent)
    assert folder.waiting() == [sent.id]
    assert folder.read(sent.id) == sent
    assert folder.claim(sent.id)
    assert (folder.waiting(), folder.taken(), folder.read_taken(sent.id)) == ([], [sent.id], sent)
    folder.release(sent.id)
    assert folder.taken() == []


def test_a_command_is_either_claimed_or_withdrawn(folder):
    first, second = command(), command()
    folder.send(first), folder.send(second)
    assert folder.withdraw(first.id)
    assert not folder.claim(first.id)
    assert folder.claim(second.id)
    assert not folder.withdraw(second.id)


def test_an_answer_is_read_as_it_was_written(folder):
    answer = ControlAnswer(new_id(), "applied", step=3, was={"lr": 0.1}, now={"lr": 0.2}, note="a note")
    assert folder.answer(answer.id) is None
    folder.put_answer(answer)
    assert folder.answer(answer.id) == answer


def test_a_value_that_is_not_finite_becomes_text(folder):
    answer = ControlAnswer(new_id(), "applied", values={"val_loss": float("nan")})
    folder.put_answer(answer)
    assert folder.answer(answer.id).values == {"val_loss": "nan"}


def test_all_files_and_folders_are_private(folder):
    folder.send(command())
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.rglob("*")}
    assert set(modes.values()) == {0o700, 0o600}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_raises(tmp_path, mode):
    ControlFolder.create(tmp_path).close()
    (tmp_path / ".control").chmod(mode)
    with pytest.raises(errors.BadControlFile, match="others can write to it"):
        ControlFolder(tmp_path)


def test_a_link_to_a_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".control").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Not a directory|symbolic"):
        ControlFolder.create(tmp_path)


def test_swapping_the_folder_has_no_effect_on_an_open_one(folder, tmp_path):
    folder.path.rename(tmp_path / "moved")
    ControlFolder.create(tmp_path).close()
    folder.send(command())
    assert len(list((tmp_path / "moved" / "inbox").iterdir())) == 1


UNUSABLE = {
    "torn": b'{"format": 1, "id": "',
    "not json": b"\x80\x04\x95",
    "deeply nested": b"[" * 60000,
    "a list": b"[]",
    "oversized": b" " * (MAX_COMMAND_BYTES + 1),
    "NaN": b'{"format": 1, "args": {"values": {"lr": NaN}}}',
    "a huge integer": b"9" * 60000,
}


@pytest.mark.parametrize("data", UNUSABLE.values(), ids=UNUSABLE)
def test_damaged_files_are_rejected(folder, data):
    command_id = put_raw(folder, data)
    with pytest.raises(errors.BadControlFile):
        folder.read(command_id)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2}, "format 1"),
        ({"id": "x"}, "same id as its file"),
        ({"attempt": 3}, "attempt"),
        ({"attempt": "../../x"}, "attempt"),
        ({"do": "exec"}, "unknown command 'exec'"),
        ({"args": []}, "objects"),
        ({"expect": 1}, "objects"),
        ({"seconds": "soon"}, "seconds"),
        ({"seconds": True}, "seconds"),
    ],
)
def test_invalid_fields_are_rejected(folder, change, problem):
    one = command()
    put_raw(folder, json.dumps({**one.encoded(), **change}).encode(), one.id)
    with pytest.raises(errors.BadControlFile, match=problem):
        folder.read(one.id)


def test_links_and_pipes_are_rejected_and_do_not_block(folder, tmp_path):
    one, inbox = command(), folder.path / "inbox"
    real = tmp_path / "real.json"
    real.write_text(json.dumps(one.encoded()))
    os.link(real, inbox / f"{one.id}.json")
    symbolic, pipe, directory = new_id(), new_id(), new_id()
    (inbox / f"{symbolic}.json").symlink_to(real)
    os.mkfifo(inbox / f"{pipe}.json")
    (inbox / f"{directory}.json").mkdir()
    for command_id, problem in ((one.id, "2 hard links"), (symbolic, "regular"), (pipe, "regular"), (directory, "regular")):
        with pytest.raises(errors.BadControlFile, match=problem):
            folder.read(command_id)
        assert folder.claim(command_id)
        folder.release(command_id)
    assert (folder.waiting(), folder.taken()) == ([], [])
    assert real.exists()


def test_files_with_other_names_are_ignored(folder):
    for name in ("README", "x.json", f".{new_id()}.json", f"{new_id()}.json.tmp"):
        (folder.path / "inbox" / name).touch()
    assert folder.waiting() == []


def test_clean_up_removes_old_answers_and_temporary_files(folder, monkeypatch):
    monkeypatch.setattr("hookpoint.steering.control_folder.MAX_ANSWERS", 2)
    ids = sorted(new_id() for _ in range(4))
    for command_id in ids:
        folder.put_answer(ControlAnswer(command_id, "applied"))
    half = folder.path / "inbox" / f".{ids[0]}.json.12.abcd"
    half.touch()
    folder.clean_up()
    assert folder.answers() == ids[2:]
    assert not half.exists()


def test_a_file_replaced_during_a_read_is_read_again(folder, monkeypatch):
    old, new = (ControlAnswer("1" * 20 + "-" + "2" * 8, "applied", step=step) for step in (3, 4))
    folder.put_answer(old)
    open_file, replaced = os.open, []

    def replacing(path, flags, *args, **options):
        descriptor = open_file(path, flags, *args, **options)
        if path == f"{old.id}.json" and not replaced:
            replaced.append(path)
            folder.put_answer(new)
        return descriptor

    monkeypatch.setattr(os, "open", replacing)
    assert folder.answer(old.id) == new
    assert replaced
