from __future__ import annotations

import json

from hookpoint.run_folder.index_process import IndexProcess


def test_wait_returns_why_no_index_was_written(tmp_path):
    process = IndexProcess(tmp_path / "nothing.jsonl", tmp_path / "index")
    assert process.wait(lambda position: None).startswith("FileNotFoundError: [Errno 2]")
    (tmp_path / "scalars.jsonl").write_text(json.dumps({"step": 1, "epoch": 1, "time": 1.0, "at": "step", "loss": 1.0}) + "\n")
    assert IndexProcess(tmp_path / "scalars.jsonl", tmp_path / "index").wait(lambda position: None) == ""
