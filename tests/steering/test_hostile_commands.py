"""Hostile files in the inbox are not applied and do not end the run."""

from __future__ import annotations

import json
import os
import socket

import pytest

from hookpoint import control
from hookpoint.steering.control_command import ControlCommand, new_id
from hookpoint.steering.control_folder import ControlFolder

ALPHA = "Tunable.alpha"


class Inbox:
    """The inbox of a run, with the content of a valid command."""

    def __init__(self, workdir):
        self.folder = workdir / ".control" / "inbox"
        with ControlFolder(workdir) as folder:
            self.attempt = folder.live().attempt

    def content(self, id, **changes):
        command = ControlCommand("set", {"values": {ALPHA: 0.9}}, self.attempt, id=id, by="mallory")
        return {**command.encoded(), **changes}

    def write(self, id, text):
        (self.folder / f"{id}.json").write_text(text)


def torn(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id))[:50])


def empty(inbox, id):
    inbox.write(id, "")


def no_text(inbox, id):
    (inbox.folder / f"{id}.json").write_bytes(b"\xff\xfe\x00" * 20)


def linked(inbox, id):
    target = inbox.folder.parent / "elsewhere.json"
    target.write_text(json.dumps(inbox.content(id)))
    os.symlink(target, inbox.folder / f"{id}.json")


def linked_to_nothing(inbox, id):
    os.symlink("nowhere", inbox.folder / f"{id}.json")


def second_name(inbox, id):
    original = inbox.folder.parent / "original.json"
    original.write_text(json.dumps(inbox.content(id)))
    os.link(original, inbox.folder / f"{id}.json")


def pipe(inbox, id):
    os.mkfifo(inbox.folder / f"{id}.json")


def bound_socket(inbox, id):
    here = os.getcwd()
    os.chdir(inbox.folder)  # the length of a socket's path is limited
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{id}.json")
    finally:
        os.chdir(here)


def folder(inbox, id):
    (inbox.folder / f"{id}.json").mkdir()


def folder_with_a_file(inbox, id):
    (inbox.folder / f"{id}.json").mkdir()
    (inbox.folder / f"{id}.json" / "x").write_text("")


def oversized(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, by="x" * 100_000)))


def deeply_nested(inbox, id):
    inbox.write(id, "[" * 60_000)


def nested_values(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id)).replace("0.9", "[" * 900 + "]" * 900))


def not_a_number(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id)).replace("0.9", "NaN"))


def infinite(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id)).replace("0.9", "1e999"))


def many_digits(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id)).replace("0.9", "9" * 5000))


def another_id(inbox, id):
    inbox.write(id, json.dumps(inbox.content(new_id())))


def another_format(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, format=99)))


def another_attempt(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, attempt="f" * 32)))


def unknown_command(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, do="__import__('os').system('true')")))


def wrong_arguments(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, args=[1, 2])))


def values_of_another_type(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, args={"values": "alpha"})))


def private_attribute(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, args={"values": {"Tunable.__class__": 0.9, "Tunable.alphas": 1}})))


def evil_steps(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, do="log-every", args={"steps": True})))


def expired(inbox, id):
    inbox.write(id, json.dumps(inbox.content(id, seconds=-1)))


HOSTILE = [
    torn, empty, no_text, linked, linked_to_nothing, second_name, pipe, bound_socket, folder, folder_with_a_file, oversized,
    deeply_nested, nested_values, not_a_number, infinite, many_digits, another_id, another_format, another_attempt,
    unknown_command, wrong_arguments, values_of_another_type, private_attribute, evil_steps, expired,
]  # fmt: skip


def test_hostile_files_are_not_applied_and_do_not_end_the_run(steered, until):
    with steered() as live:
        inbox, ctl = Inbox(live.workdir), control(live.workdir)
        ids = {make.__name__: new_id() for make in HOSTILE}
        for make in HOSTILE:
            make(inbox, ids[make.__name__])
        with ControlFolder(live.workdir) as files:
            answers = {}

            def all_are_answered():
                answers.update({name: files.answer(id) for name, id in ids.items()})
                return all(answer is not None and answer.is_final for answer in answers.values())

            until(all_are_answered)
        assert ctl.set({"Tunable.mode": "slow"}).status == "applied"
    assert {name: answer.status for name, answer in answers.items() if answer.status == "applied"} == {}
    assert answers["another_attempt"].status == "lost"
    assert answers["torn"].status == "refused"
    assert all(answer.reason for answer in answers.values())
    assert set(live.tunable.alphas) == {0.5}
    assert [name for name in os.listdir(inbox.folder) if ids["folder_with_a_file"] not in name] == []


def test_names_that_are_not_commands_are_ignored(steered):
    with steered() as live:
        inbox, ctl = Inbox(live.workdir), control(live.workdir)
        names = ["README", ".hidden.json", "x.json", "\x1b[2J.json", f"{'1' * 20}-zzzzzzzz.json", f"{new_id()}.json.tmp"]
        for name in names:
            (inbox.folder / name).write_text(json.dumps(inbox.content(new_id())))
        assert ctl.set({"Tunable.mode": "slow"}).status == "applied"
    assert set(live.tunable.alphas) == {0.5}


def test_an_answered_command_is_not_applied_again(steered, until):
    with steered() as live:
        inbox, ctl = Inbox(live.workdir), control(live.workdir)
        answer = ctl.set({ALPHA: 0.25})
        inbox.write(answer.id, json.dumps(inbox.content(answer.id)))
        until(lambda: os.listdir(inbox.folder) == [])
        with ControlFolder(live.workdir) as files:
            assert files.answer(answer.id) == answer
        ctl.log_every(3)
    assert set(live.tunable.alphas) == {0.5, 0.25}


def test_a_tag_is_never_used_as_a_path(steered):
    with steered() as live:
        order = control(live.workdir).send("save", {"tag": "../../../evil\x1b[2J"})
        order.wait()
    assert not list(live.workdir.parent.parent.rglob("*evil*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(steered, until):
    with steered() as live:
        inbox, id = Inbox(live.workdir), new_id()
        staged = inbox.folder / "staged"
        staged.write_text(json.dumps(inbox.content(id)))
        os.chown(staged, 12345, 12345)
        staged.rename(inbox.folder / f"{id}.json")
        with ControlFolder(live.workdir) as files:
            until(lambda: files.answer(id) is not None)
            assert files.answer(id).status == "refused"
    assert set(live.tunable.alphas) == {0.5}
