"""Curves of files that are long, cannot be indexed, or are truncated."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hookpoint.board import _indexer, _live_curves
from hookpoint.board._indexer import Indexer
from hookpoint.board._live_curves import LiveCurves
from hookpoint.run_folder.index_process import IndexProcess


def row(step, **values):
    return json.dumps({"step": step, "epoch": 1 + step // 100, "time": 1.79e9 + step, "at": "step", **values}) + "\n"


@pytest.fixture
def curves(tmp_path, monkeypatch):
    """The curves of tmp_path/scalars.jsonl, which is treated as a long file."""
    monkeypatch.setattr(_live_curves, "MAX_UNREAD_BYTES", 10_000)
    made = Indexer(tmp_path / "cache")
    (tmp_path / "scalars.jsonl").write_text("".join(row(step, loss=9.0 if step == 777 else 0.5) for step in range(1_000)))
    yield LiveCurves(tmp_path / "scalars.jsonl", made)
    made.stop()


def everything(curves):
    return curves.answer(None, float("-inf"), float("inf"), 500)


def after(curves, is_there):
    while not is_there(found := everything(curves)):
        pass
    return found


@pytest.mark.parametrize("failure", ["exits", "cannot start"])
def test_a_file_is_read_by_the_server_if_the_index_process_fails(curves, tmp_path, monkeypatch, failure):
    class Failing(IndexProcess):
        def __init__(self, path, target):
            if failure == "cannot start":
                raise OSError(12, "Cannot allocate memory")
            super().__init__(path, Path("/dev/null/no/folder"))

    monkeypatch.setattr(_indexer, "IndexProcess", Failing)
    monkeypatch.setattr(_live_curves, "READ_SECONDS", 0.0)
    assert everything(curves)["preview"]
    found = after(curves, lambda found: found["note"])
    assert (found["preview"], found["exact"]) == (False, False)
    reasons = {"exits": "NotADirectoryError", "cannot start": "Cannot allocate memory"}
    assert found["note"].startswith("read slowly, because the index process failed: ")
    assert reasons[failure] in found["note"]
    found = after(curves, lambda found: found["exact"])
    assert (max(found["curves"][0]["hi"]), found["note"]) == (9.0, "")
    with (tmp_path / "scalars.jsonl").open("a") as file:
        file.write("".join(row(step, loss=10.0) for step in range(1_000, 2_000)))
    assert max(after(curves, lambda found: found["exact"])["curves"][0]["hi"]) == 10.0


def test_a_file_that_cannot_be_read_has_a_problem(tmp_path):
    made = Indexer(tmp_path / "cache")
    (tmp_path / "scalars.jsonl").mkdir()
    found = everything(LiveCurves(tmp_path / "scalars.jsonl", made))
    assert (found["problem"] != "", found["exact"], found["complete"] < 1) == (True, False, True)
    made.stop()


def test_a_preview_includes_epochs(curves):
    found = everything(curves)
    assert found["preview"]
    epochs = {epoch: step for step, epoch in found["epochs"]}
    assert sorted(epochs) == list(range(1, 11))
    assert all(abs(step - (100 * epoch - 1)) < 20 for epoch, step in epochs.items())


def test_a_truncated_file_gets_a_new_generation(curves, tmp_path):
    first = after(curves, lambda found: found["exact"])
    with (tmp_path / "scalars.jsonl").open("a") as file:
        file.write(row(1_000, loss=1.0))
    assert after(curves, lambda found: found["exact"])["generation"] == first["generation"]
    content = (tmp_path / "scalars.jsonl").read_bytes()
    os.truncate(tmp_path / "scalars.jsonl", content.index(b'{"step": 500,'))
    assert after(curves, lambda found: found["exact"])["generation"] > first["generation"]
