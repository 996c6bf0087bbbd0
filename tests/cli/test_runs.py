"""`hookpoint runs` finds runs and lists them."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import hookpoint
from hookpoint import callbacks as cb


def names(result):
    return [line.split()[0] for line in result.stdout.splitlines()[1:]]


def test_each_run_has_one_line(command, train_run):
    train_run("first", epochs=1)
    train_run("second", epochs=2)
    lines = command("runs").stdout.splitlines()
    assert lines[0].split() == ["name", "status", "epoch", "step", "best", "last", "started", "duration"]
    assert lines[1].split()[:7] == ["first", "finished", "1/1", "4", "val_loss", "3", "3"]
    assert lines[2].split()[:7] == ["second", "finished", "2/2", "8", "val_loss", "1.5", "1.5"]


def test_json_output(command, train_run):
    folder = train_run()
    (one,) = json.loads(command("runs", "--json").stdout)
    assert one["path"] == "runs/mine"
    assert (one["name"], one["status"], one["epoch"], one["epochs"], one["step"]) == ("mine", "finished", 2, 2, 8)
    assert one["best"] == {"metric": "val_loss", "value": 1.5, "step": 8, "mode": "min", "source": "run"}
    assert one["last"] == {"loss": 1.25, "val_loss": 1.5}
    assert folder.is_dir()


def test_a_run_without_epochs_is_listed_with_its_values(command, tmp_path):
    for name, monitors in (("logged", [cb.JSONWriter()]), ("kept", [])):
        with hookpoint.Loop(workdir=tmp_path / "runs" / name, extra_callbacks=[], monitors=monitors) as run:
            for batch in run.batches([1.0, 3.0]):
                run.log(reward=batch)
    with hookpoint.Loop(workdir=tmp_path / "runs" / "loss", extra_callbacks=[], monitors=[]) as run:
        run.log(loss=0.5)
    rows = [line.split() for line in command("runs", "--sort", "name").stdout.splitlines()[1:]]
    assert [row[:6] for row in rows] == [
        ["kept", "finished", "1", "2", "reward", "2"],
        ["logged", "finished", "1", "2", "reward", "2"],
        ["loss", "finished", "0", "0", "loss", "0.5"],
    ]


def test_an_unknown_status_is_rejected(command, train_run):
    train_run()
    assert "'finshed' is not one of 'running', 'finished'" in command("runs", "--status", "finshed", code=2).stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--sort", "name"], ["a", "b", "c"]),
        (["--sort", "name", "--reverse"], ["c", "b", "a"]),
        (["--sort", "step"], ["b", "a", "c"]),
        (["--sort", "best"], ["c", "a", "b"]),
        (["--status", "finished", "-s", "name"], ["a", "b"]),
        (["--status", "finished", "--status", "unknown", "-s", "name"], ["a", "b", "c"]),
    ],
    ids=" ".join,
)
def test_runs_are_sorted_and_filtered(command, train_run, options, expected):
    train_run("b", epochs=1)
    train_run("a", epochs=2)
    (train_run("c", epochs=3) / "run.json").unlink()
    assert names(command("runs", *options)) == expected


def test_earlier_runs_are_listed_only_with_all(command, train_run):
    train_run(epochs=1)
    train_run(epochs=1, resume="never")
    assert names(command("runs")) == ["mine"]
    assert sorted(names(command("runs", "--all"))) == ["mine", "mine/previous/001"]


def test_without_a_runs_folder_the_current_folder_is_searched(command, train_run, monkeypatch):
    monkeypatch.chdir(train_run())
    assert names(command("runs")) == ["mine"]


def test_a_given_folder_is_searched(command, train_run, tmp_path):
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    shutil.move(train_run(), tmp_path / "deep" / "deeper" / "one")
    assert names(command("runs", "deep")) == ["deeper/one"]
    assert command("runs", "deep", "--levels", "1").stderr == "no runs in deep\n"


def test_an_empty_folder_has_no_runs(command, tmp_path):
    result = command("runs")
    assert (result.stdout, result.stderr) == ("", "no runs in .\n")
    assert command("runs", "--json").stdout == "[]\n"
    assert "no runs in . that are running" in command("runs", "--status", "running").stderr


def test_a_missing_folder_is_named(command):
    assert command("runs", "nothing", code=2).stderr == "hookpoint: there is no folder nothing\n"


def test_folders_of_other_programs_are_not_runs(command, tmp_path):
    for name, text in {
        "a/package.json": "{}",
        "b/run.json": '{"status": "ok"}',
        "c/run.json": "no json",
        "d/scalars.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "e" / "checkpoints" / "epoch=1").mkdir(parents=True)
    (tmp_path / "f").mkdir()
    for name in ("scalars.jsonl", "run.json", ".lock"):
        os.mkfifo(tmp_path / "f" / name)
    assert command("runs").stderr == "no runs in .\n"


def test_each_run_is_listed_once_despite_links(command, train_run, tmp_path):
    folder = train_run()
    (tmp_path / "runs" / "aaa-latest").symlink_to("mine")
    (folder / "circle").symlink_to("..")
    (tmp_path / "runs" / "self").symlink_to("self")
    (tmp_path / "runs" / "gone").symlink_to("nowhere")
    assert names(command("runs")) == ["mine"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is closed to this user")
def test_an_unreadable_folder_is_skipped(command, train_run, tmp_path):
    train_run()
    (tmp_path / "runs" / "closed").mkdir(mode=0)
    assert names(command("runs")) == ["mine"]


def test_a_folder_that_cannot_be_listed_is_skipped(command, train_run, tmp_path, monkeypatch):
    train_run()
    (tmp_path / "runs" / "closed").mkdir()
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    assert names(command("runs")) == ["mine"]


def test_markup_and_control_characters_in_names_are_plain_text(command, tmp_path):
    name = "\x1b[31m[red]x\n[/red]"
    (tmp_path / "runs" / name).mkdir(parents=True)
    row = {"step": 1, "epoch": 1, "time": 1.0, "at": "epoch", "loss\x1b[2J [bold]": 1.0}
    (tmp_path / "runs" / name / "scalars.jsonl").write_text(json.dumps(row) + "\n")
    shown = command("runs").stdout
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2
    assert "?[31m[red]x [/red]" in shown
    assert "loss?[2J [bold]" in shown
    (one,) = json.loads(command("runs", "--json").stdout)
    assert one["name"] == name


def test_a_thousand_runs_are_listed(command, tmp_path):
    row = {"step": 5, "epoch": 1, "time": 1.0, "at": "epoch", "val_loss": 0.5}
    for number in range(1000):
        folder = tmp_path / "runs" / f"run-{number:04d}"
        folder.mkdir(parents=True)
        (folder / "scalars.jsonl").write_text(json.dumps(row) + "\n")
    assert len(names(command("runs"))) == 1000


def test_running_and_killed_runs_are_told_apart(command, training, until):
    with training() as live:
        live.epoch()
        until(lambda: (live.workdir / "scalars.jsonl").exists())
        assert command("runs").stdout.splitlines()[1].split()[:2] == ["live", "running"]
        live.process.kill()
        live.process.wait()
    assert command("runs").stdout.splitlines()[1].split()[:2] == ["live", "killed"]
