from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from hookpoint import Loop
from hookpoint.callbacks import JSONWriter, Mirror, ModelSaver
from hookpoint.cli.main import main
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.remote.remote_run import remote_run, remote_runs


@pytest.fixture(scope="module")
def mirrors(tmp_path_factory):
    """Return the folder with the mirrors of two runs."""
    folder = tmp_path_factory.mktemp("mirrors")
    for name, epochs in (("first", 2), ("below/second", 1)):
        callbacks = [ModelSaver(async_save=False), Mirror(f"file://{folder}/remote/{name}")]
        options = {"extra_callbacks": [], "monitors": [JSONWriter()], "log_every": 1, "control": False}
        with Loop(callbacks, workdir=folder / "local" / name, **options) as run:
            for epoch in run.epochs(epochs):
                for batch in run.batches(range(3)):
                    run.log(loss=batch / epoch)
    return folder / "remote"


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_run_is_read_from_its_mirror(mirrors):
    run = remote_run(f"file://{mirrors}/first")
    assert (run.status, run.step, run.epoch, run.name, run.where) == ("finished", 6, 2, "first", f"file://{mirrors}/first")
    assert [listed.step for listed in run.checkpoints] == [3, 6]
    local = [listed.size_bytes for listed in find_run(str(mirrors.parent / "local" / "first")).checkpoints]
    assert [listed.size_bytes for listed in run.checkpoints] == local
    folder = run.path
    del run
    assert not folder.exists()


def test_an_incomplete_checkpoint_is_not_listed(mirrors, tmp_path):
    import shutil

    shutil.copytree(mirrors / "first", tmp_path / "copy")
    (tmp_path / "copy" / "checkpoints" / "step-00000006" / "manifest.json").unlink()
    assert [listed.step for listed in remote_run(f"file://{tmp_path}/copy").checkpoints] == [3]


def test_runs_below_a_url_are_listed(mirrors):
    assert {name: run.step for run, name in remote_runs(f"file://{mirrors}")} == {"first": 6, "below/second": 3}
    assert {name for _, name in remote_runs(f"file://{mirrors}/first")} == {"."}
    assert [name for _, name in remote_runs(f"file://{mirrors}", levels=1)] == ["first"]


def test_a_list_reads_only_the_end_of_long_logs(mirrors, monkeypatch):
    monkeypatch.setattr("hookpoint.run_folder.remote.remote_run.TAIL_BYTES", 300)
    (run,) = [run for run, name in remote_runs(f"file://{mirrors}") if name == "first"]
    assert (run.path / "scalars.jsonl").stat().st_size == 300
    assert run.values["loss"] == 0.5


@pytest.mark.parametrize(
    ("beat", "seconds_ago", "status"),
    [
        ({"every_seconds": 60.0, "ended": False}, 0, "running"),
        ({"every_seconds": 60.0}, 900, "killed"),
        ({"every_seconds": 600.0}, 900, "running"),
        ({"updated": 7, "every_seconds": "x"}, 0, "killed"),
        (None, 0, "killed"),
    ],
)
def test_a_run_is_running_while_its_mirror_is_updated(mirrors, tmp_path, beat, seconds_ago, status):
    (tmp_path / "mine").mkdir()
    facts = json.loads((mirrors / "first" / "run.json").read_text())
    (tmp_path / "mine" / "run.json").write_text(json.dumps({**facts, "status": "running"}))
    if beat is not None:
        updated = datetime.fromtimestamp(time.time() - seconds_ago, UTC).isoformat()
        (tmp_path / "mine" / "mirror.json").write_text(json.dumps({"updated": updated, **beat}))
    assert remote_run(f"file://{tmp_path}/mine").status == status


def test_commands_read_urls(mirrors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"file://{mirrors}/first"
    listed = json.loads(invoke("runs", f"file://{mirrors}", "--json").output)
    assert sorted(run["name"] for run in listed) == ["below/second", "first"]
    assert url in invoke("show", url).output
    assert json.loads(invoke("show", url, "--json").output)["path"] == url
    assert "loss" in invoke("plot", url, "--terminal").output
    assert invoke("export", url, "-o", "-", "--format", "csv").output.startswith("step,")


def test_a_plot_of_a_mirror_is_saved_in_the_current_folder(mirrors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("plot", f"file://{mirrors}/first").exit_code == 0
    assert (tmp_path / "curves.png").exists()


def test_other_commands_reject_urls(mirrors):
    result = invoke("tail", f"file://{mirrors}/first")
    assert result.exit_code == 2
    assert "is a URL; expected a local run folder (the commands runs, show, plot and export accept URLs)" in result.output


@pytest.mark.parametrize(
    ("path", "problem"),
    [("nothing", "there is nothing in file://"), ("below", "there is no run in file://.*; it contains second")],
)
def test_a_url_without_a_run_raises(mirrors, path, problem):
    with pytest.raises(CommandError, match=problem):
        remote_run(f"file://{mirrors}/{path}")
