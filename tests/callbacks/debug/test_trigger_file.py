from __future__ import annotations

import os

import pytest

from hookpoint.callbacks.debug import _trigger_file as trigger_file
from hookpoint.callbacks.debug._trigger_file import TriggerFile


@pytest.fixture
def file(tmp_path):
    return TriggerFile(tmp_path / "file")


def test_it_is_there_or_not(file, caplog):
    assert not file.is_there()
    file.path.touch()
    assert file.is_there()
    file.remove()
    assert not file.is_there()
    assert not file.path.exists()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), "is a symbolic link"),
        (lambda path: path.symlink_to("/nowhere"), "is a symbolic link"),
        (lambda path: path.mkdir(), "is not a regular file"),
        (os.mkfifo, "is not a regular file"),
        (lambda path: (path.with_name("mine").touch(), os.link(path.with_name("mine"), path)), "has other names"),
    ],
)
def test_what_does_not_count_is_named_once_and_left_alone(file, caplog, make, says):
    make(file.path)
    assert not file.is_there()
    assert not file.is_there()
    assert caplog.messages == [f"{file.path} {says} and is ignored"]
    assert os.path.lexists(file.path)


def test_a_file_of_another_user_does_not_count(file, caplog, monkeypatch):
    file.path.touch()
    monkeypatch.setattr(trigger_file.os, "geteuid", lambda: 12345)
    assert not file.is_there()
    assert caplog.messages == [f"{file.path} belongs to user {os.getuid()}, not to 12345 and is ignored"]


def test_it_is_named_again_after_it_was_gone(file, caplog):
    for _ in range(2):
        file.path.mkdir()
        assert not file.is_there()
        file.path.rmdir()
        assert not file.is_there()
    assert len(caplog.messages) == 2


def test_a_folder_that_cannot_be_looked_into(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert not TriggerFile(tmp_path / "file" / "x").is_there()
    assert caplog.messages == [f"{tmp_path}/file/x cannot be checked: Not a directory"]


def test_one_that_cannot_be_removed_is_named(file, caplog):
    file.path.mkdir()
    file.remove()
    assert caplog.messages[0].startswith(f"{file.path} could not be removed: ")
