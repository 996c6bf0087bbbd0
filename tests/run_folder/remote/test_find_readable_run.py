"""A run to read is found by its path, by its name, or by a URL."""

from __future__ import annotations

import pytest

from hookpoint import Loop
from hookpoint.callbacks import Mirror
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.remote.find_readable_run import find_readable_run


def test_paths_names_and_urls(tmp_path, monkeypatch):
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


def test_a_folder_that_looks_like_a_url_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    (tmp_path / "s3:" / "bucket" / "scalars.jsonl").write_text("")
    assert not find_readable_run("s3://bucket").is_remote
