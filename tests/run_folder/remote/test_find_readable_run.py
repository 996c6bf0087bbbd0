"""A run can be found by its path, its name or a URL."""

from __future__ import annotations

import pytest

from hookpoint import Loop
from hookpoint.callbacks import Mirror
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.remote.find_readable_run import find_readable_run


def test_a_run_is_found_by_name_path_and_url(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/remote/mine"
    monkeypatch.chdir(tmp_path)
    with Loop([Mirror(url)], workdir="runs/mine", extra_callbacks=[], monitors=[], control=False) as run:
        for _ in run.epochs(1):
            pass
    for name in ("mine", "runs/mine"):
        found = find_readable_run(name)
        assert (found.where, found.is_remote, found.status) == ("runs/mine", False, "finished")
    found = find_readable_run(url)
    assert (found.where, found.is_remote, found.status) == (url, True, "finished")
    with pytest.raises(CommandError, match="expected a local run folder"):
        find_run(url)


def test_an_existing_folder_wins_over_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    (tmp_path / "s3:" / "bucket" / "scalars.jsonl").write_text("")
    assert not find_readable_run("s3://bucket").is_remote
