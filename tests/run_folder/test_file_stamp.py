"""A file is not reopened while its stamp shows no change."""

from __future__ import annotations

import json
import os
import time

import pytest

from hookpoint.run_folder import file_follower
from hookpoint.run_folder.file_follower import FileFollower
from hookpoint.run_folder.file_stamp import FileStamp


def test_a_stamp_is_settled_after_two_seconds(tmp_path):
    path = tmp_path / "file"
    path.write_text("a")
    assert not FileStamp.of(path).is_settled
    os.utime(path, (time.time() - 3, time.time() - 3))
    assert FileStamp.of(path).is_settled
    with pytest.raises(FileNotFoundError):
        FileStamp.of(tmp_path / "nothing")


def test_a_follower_opens_a_file_only_if_it_has_changed(tmp_path, monkeypatch):
    path, opened = tmp_path / "events.jsonl", []
    real = file_follower.open_plain
    monkeypatch.setattr(file_follower, "open_plain", lambda path: opened.append(path) or real(path))

    def add(step, seconds_ago):
        with path.open("a") as file:
            file.write(json.dumps({"step": step, "time": float(step), "event": "stop"}) + "\n")
        os.utime(path, (time.time() - seconds_ago, time.time() - seconds_ago))

    follower = FileFollower(path)
    add(1, 60)
    assert [row["step"] for row in follower.new()] == [1]
    assert (follower.new(), follower.new(), len(opened)) == ([], [], 1)
    add(2, 0)  # so recent that another change may leave the same stamp
    assert [row["step"] for row in follower.new()] == [2]
    assert (follower.new(), len(opened)) == ([], 3)
