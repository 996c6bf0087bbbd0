from __future__ import annotations

import json
import os

from hookpoint.run_folder.file_follower import FileFollower


def row(step, time=None, **values):
    return json.dumps({"step": step, "epoch": 1, "time": float(step if time is None else time), "at": "step", **values}) + "\n"


def steps(rows):
    return [one["step"] for one in rows]


def test_the_last_records_come_first_and_then_new_ones(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text(row(1) + row(2) + row(3))
    file = FileFollower(path)
    assert steps(file.last(2)) == [2, 3]
    assert file.new() == []
    with open(path, "a") as writer:
        writer.write(row(4) + row(5)[:10])
        writer.flush()
        assert steps(file.new()) == [4]
        writer.write(row(5)[10:])
        writer.flush()
        assert steps(file.new()) == [5]
    assert not file.was_truncated


def test_a_missing_file_is_read_once_it_exists(tmp_path):
    file = FileFollower(tmp_path / "scalars.jsonl")
    assert (file.last(5), file.new()) == ([], [])
    (tmp_path / "scalars.jsonl").write_text(row(1))
    assert steps(file.new()) == [1]


def test_a_torn_last_line_is_read_once_it_is_complete(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text(row(1) + '{"step": 2')
    file = FileFollower(path)
    assert steps(file.last(5)) == [1]
    path.write_text(row(1) + row(2))
    assert steps(file.new()) == [2]


def test_a_truncated_file_is_followed_from_its_new_end(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text("".join(map(row, range(1, 11))))
    file = FileFollower(path)
    file.last(1)
    os.truncate(path, len(row(1)) * 4)
    assert file.new() == []
    assert file.was_truncated
    with open(path, "a") as writer:
        writer.write(row(5, 20) + row(6, 21))
    assert steps(file.new()) == [5, 6]
    assert not file.was_truncated


def test_a_truncation_is_noticed_after_the_file_has_grown_again(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text("".join(map(row, range(1, 11))))
    file = FileFollower(path)
    file.last(1)
    path.write_text("".join(map(row, range(1, 5))) + "".join(row(step, step + 100) for step in range(5, 30)))
    assert steps(file.new()) == list(range(5, 30))
    assert file.was_truncated
    assert file.new() == []


def test_a_new_file_in_its_place_is_read_from_the_start(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text(row(1) + row(2))
    file = FileFollower(path)
    file.last(1)
    path.rename(tmp_path / "old")
    assert file.new() == []
    path.write_text(row(1, 50))
    assert steps(file.new()) == [1]


def test_lines_that_are_not_records_are_skipped(tmp_path):
    path = tmp_path / "scalars.jsonl"
    path.write_text(row(1) + "soup\n" + row(2))
    assert steps(FileFollower(path).last(5)) == [1, 2]
