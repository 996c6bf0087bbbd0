from __future__ import annotations

import shutil

from hookpoint.run_folder.find_run import find_runs


def test_hidden_folders_and_checkpoints_are_not_searched(train_run, tmp_path):
    folder = train_run()
    for place in (tmp_path / "runs" / ".hidden", folder / "checkpoints" / "inner", folder / "beside"):
        place.mkdir()
        shutil.copy(folder / "run.json", place)
    assert sorted(path.name for path in find_runs(tmp_path / "runs")) == ["beside", "mine"]
