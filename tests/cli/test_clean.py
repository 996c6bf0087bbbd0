"""`hookpoint clean` deletes only files that it lists, only hookpoint's files, and never from a running run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from hookpoint import Callback, Loop
from hookpoint import callbacks as cb
from hookpoint.cli._clean_plan import plan_deletions
from hookpoint.run_folder.run_folder import RunFolder


class Save(Callback):
    """Save manually after the first epoch."""

    def __init__(self, tag="manual"):
        super().__init__()
        self.tag = tag

    def on_epoch_end(self, run):
        if run.epoch == 1:
            run.save(self.tag)


def checkpoints(folder):
    return sorted(os.listdir(folder / "checkpoints"))


@pytest.fixture
def mine(train_run):
    """A run of five epochs whose fifth was the best, with a manual checkpoint at the first."""
    return train_run(epochs=5, callbacks=[cb.ModelSaver(), cb.MinSaver("val_loss"), Save()])


def test_clean_lists_the_deletions_and_their_size_then_asks(command, mine):
    before = checkpoints(mine)
    size = sum(
        path.stat().st_size for name in ("08", "12", "16") for path in (mine / f"checkpoints/step-000000{name}").iterdir()
    )
    result = command("clean", "mine", input="n\n")
    assert result.stdout == (
        "to delete:\n"
        "  checkpoints/step-00000008  2 files  model, best-val_loss\n"
        "  checkpoints/step-00000012  2 files  model, best-val_loss\n"
        "  checkpoints/step-00000016  2 files  model, best-val_loss\n"
        "to keep:\n"
        "  step-00000004  tagged manual\n"
        "  step-00000020  the newest valid one\n"
        f"this frees {size / 1024:.1f} KiB\n"
    )
    assert result.stderr == "delete? [y/N] nothing was deleted\n"
    assert checkpoints(mine) == before


@pytest.mark.parametrize("way", ["asked", "--yes"])
def test_old_checkpoints_are_deleted(command, mine, way):
    command("clean", "mine", *([way] if way != "asked" else []), input="y\n")
    assert checkpoints(mine) == ["best-val_loss", "last", "step-00000004", "step-00000020"]
    assert command("verify", "mine").exit_code == 0
    assert "nothing to delete in runs/mine; 2 checkpoints kept" in command("clean", "mine", "-y").stderr


def test_a_run_resumes_after_clean(command, mine, train_run):
    command("clean", "mine", "--yes")
    train_run(epochs=6, callbacks=[cb.ModelSaver(), cb.MinSaver("val_loss"), Save()])
    assert RunFolder(mine).epoch == 6
    assert not (mine / "previous").exists()


def test_without_an_answer_nothing_is_deleted(command, mine):
    before = checkpoints(mine)
    assert "--yes deletes without asking" in command("clean", "mine", input="", code=2).stderr
    assert checkpoints(mine) == before


def test_a_dry_run_deletes_nothing(command, mine):
    before = checkpoints(mine)
    assert "this frees" in command("clean", "mine", "--dry-run", "--all", "--yes").stdout
    assert checkpoints(mine) == before


def test_the_newest_checkpoint_is_verified_before_any_deletion(command, mine):
    for path in (mine / "checkpoints" / "step-00000020").glob("state.*"):  # .json, or .pt if torch is loaded
        path.write_bytes(b"x")
    shown = command("clean", "mine", "--dry-run").stdout
    assert "step-00000016  the newest valid one" in shown
    for path in (mine / "checkpoints").glob("step-*/state.*"):
        path.write_bytes(b"x")
    assert command("clean", "mine", "--yes").stderr.startswith("nothing to delete")


def test_custom_tags_are_kept_unless_they_are_named(command, train_run):
    folder = train_run(epochs=3, callbacks=[cb.ModelSaver(tag="often"), Save("milestone")])
    assert "step-00000004  tagged milestone" in command("clean", "mine", "--dry-run").stdout
    command("clean", "mine", "--yes")
    assert checkpoints(folder) == ["last", "step-00000004", "step-00000012"]
    command("clean", "mine", "--yes", "--tag", "milestone")
    assert checkpoints(folder) == ["last", "step-00000012"]


def test_the_newest_best_checkpoint_is_kept(command, train_run):
    class Worse(Callback):
        def on_epoch_end(self, run):
            run.log(score=float(run.epoch == 2))

    folder = train_run(epochs=4, callbacks=[cb.ModelSaver(), Worse(), cb.MaxSaver("score")])
    shown = command("clean", "mine", "--yes").stdout
    assert "step-00000008  the newest best-score" in shown
    assert checkpoints(folder) == ["best-score", "last", "step-00000008", "step-00000016"]


def test_clean_logs_deletes_only_log_files(command, mine):
    (mine / "tensorboard").mkdir(exist_ok=True)
    (mine / "tensorboard" / "events.out.tfevents.1.host.2.3").write_text("x")
    (mine / "tensorboard" / "notes.txt").write_text("mine")
    command("clean", "mine", "--logs", "--yes")
    assert sorted(path.name for path in mine.iterdir()) == [".control", ".lock", "checkpoints", "run.json", "tensorboard"]
    assert [path.name for path in (mine / "tensorboard").iterdir()] == ["notes.txt"]


def test_clean_previous_deletes_earlier_runs_and_keeps_other_files(command, train_run):
    folder = train_run(epochs=1)
    train_run(epochs=1, resume="never")
    train_run(epochs=1, resume="never")
    (folder / "previous" / "002" / "notes.txt").write_text("mine")
    (folder / "previous" / "keep").mkdir()
    result = command("clean", "mine", "--previous", "--yes")
    assert "previous/001" in result.stdout
    assert "not deleted, because it contains other files: runs/mine/previous/002" in result.stderr
    assert sorted(path.name for path in (folder / "previous").iterdir()) == ["002", "keep"]
    assert [path.name for path in (folder / "previous" / "002").iterdir()] == ["notes.txt"]


def test_clean_all_deletes_the_run_folder(command, mine):
    command("clean", "mine", "--all", "--yes")
    assert not mine.exists()


def test_clean_all_keeps_files_that_are_not_hookpoints(command, mine):
    (mine / "notes.txt").write_text("mine")
    (mine / "hyper.txt").write_text("lr:0.1")
    (mine / "checkpoints" / "notes.txt").write_text("mine")
    (mine / "checkpoints" / "step-00000008" / "notes.txt").write_text("mine")
    shutil.copytree(mine / "checkpoints" / "step-00000012", mine / "checkpoints" / "damaged-step-00000001")
    result = command("clean", "mine", "--all", "--yes")
    assert "not deleted, because it contains other files: runs/mine/checkpoints/step-00000008" in result.stderr
    found = sorted(str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_file())
    assert found == ["checkpoints/notes.txt", "checkpoints/step-00000008/notes.txt", "hyper.txt", "notes.txt"]


def test_leftovers_of_killed_saves_are_deleted(command, mine):
    left = mine / "checkpoints" / ".staging-step-00000024-0123456789abcdef"
    left.mkdir()
    for name in ("state.json", "__0_0.distcp", ".metadata", ".metadata.tmp"):
        (left / name).write_text("{}")
    (mine / "checkpoints" / ".staging-mine").mkdir()
    command("clean", "mine", "--yes")
    assert not left.exists()
    assert (mine / "checkpoints" / ".staging-mine").exists()


KILLED = """
    import os, signal, sys

    left = int(sys.argv.pop(1))

    def count(event, arguments):
        global left
        if event in ("os.remove", "os.rename", "os.rmdir") and "checkpoints" in str(arguments[0]):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    from hookpoint.cli.main import main
    main()
"""


@pytest.fixture
def killed(tmp_path):
    """Run the command in a process that is killed after `changes` changes; return whether it was killed."""

    def run(changes, *arguments):
        program = [sys.executable, "-c", textwrap.dedent(KILLED), str(changes), *arguments]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, timeout=250, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    return run


@pytest.mark.parametrize("options", [(), ("--all",)], ids=["old ones", "all"])
def test_the_next_clean_finishes_a_killed_clean(command, train_run, killed, options, spread):
    for changes in spread(range(20), 5):
        folder = train_run(f"run-{changes}", epochs=3, callbacks=[cb.ModelSaver()])
        was_killed = killed(changes, "clean", folder.name, "--yes", *options)
        assert was_killed == (changes < (8 if options == () else 14))
        if was_killed:
            command("verify", folder.name)
            command("clean", folder.name, "--yes", *options)
        assert not folder.exists() if options else checkpoints(folder) == ["last", "step-00000012"]


def test_a_run_can_start_after_a_killed_clean(command, train_run, killed):
    folder = train_run(epochs=2, callbacks=[cb.ModelSaver()])
    assert killed(6, "clean", "mine", "--yes", "--all")  # the last checkpoint is half deleted
    assert checkpoints(folder)
    train_run(epochs=1, callbacks=[cb.ModelSaver()])
    assert RunFolder(folder).epoch == 1


def test_after_a_killed_clean_foreign_files_are_still_kept(command, train_run, killed):
    folder = train_run(epochs=3, callbacks=[cb.ModelSaver()])
    notes = folder / "checkpoints" / "step-00000004" / "notes.txt"
    notes.write_text("mine")
    assert killed(2, "clean", "mine", "--yes")
    assert "checkpoints/step-00000004  1 file   half deleted" in command("clean", "mine", "--yes").stdout
    assert checkpoints(folder) == ["last", "step-00000004", "step-00000012"]
    assert os.listdir(notes.parent) == ["notes.txt"]
    assert command("clean", "mine", "--yes").stderr.startswith("nothing to delete")


def test_older_folders_without_a_manifest_and_foreign_files_are_deleted(command, train_run):
    folder = train_run(epochs=4, callbacks=[cb.ModelSaver(), Save("a"), Save("b")])
    for step in ("04", "08", "16"):
        (folder / "checkpoints" / f"step-000000{step}" / "manifest.json").unlink()
    (folder / "checkpoints" / "step-00000008" / "notes.txt").write_text("mine")
    command("clean", "mine", "--yes")
    assert checkpoints(folder) == ["last", "step-00000008", "step-00000012", "step-00000016"]
    assert len(os.listdir(folder / "checkpoints" / "step-00000008")) == 2


def test_clean_rejects_a_run_in_progress(command, training):
    with training() as live:
        live.epoch()
        for options in ([], ["--all", "--yes"], ["--dry-run"]):
            output = command("clean", "live", *options, code=69).stderr
            assert f"process {live.process.pid}" in output
            assert "is writing to runs/live; wait until it ends, or delete" in output
        live.process.kill()
        live.process.wait()
    assert command("clean", "live", "--all", "--yes").exit_code == 0


def test_a_run_that_starts_before_the_answer_is_not_touched(command, train_run, monkeypatch):
    folder = train_run(epochs=3, callbacks=[cb.ModelSaver()])
    before = checkpoints(folder)
    monkeypatch.setattr("hookpoint.cli.clean.holder_of", lambda path: None)  # the run starts after this check
    with Loop(workdir=folder, extra_callbacks=[], monitors=[]):
        assert "is in use by" in command("clean", "mine", "--yes", code=69).stderr
    assert checkpoints(folder) == before


def test_a_file_that_cannot_be_deleted_is_named(command, mine, monkeypatch):
    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    output = command("clean", "mine", "--yes", code=73).stderr
    assert output == "hookpoint: checkpoints/step-00000008 could not be deleted: Permission denied\n"


def test_symbolic_links_are_not_followed(command, mine, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "events.out.tfevents.1").write_text("mine")
    shutil.rmtree(mine / "tensorboard", ignore_errors=True)
    (mine / "tensorboard").symlink_to(outside)
    (mine / "checkpoints" / "step-00000099").symlink_to(outside)
    assert "step-00000099  a symbolic link, not a checkpoint folder" in command("clean", "mine", "--dry-run").stdout
    command("clean", "mine", "--all", "--yes")
    assert (outside / "events.out.tfevents.1").exists()
    assert (mine / "checkpoints" / "step-00000099").is_symlink()


def test_deleting_a_file_with_another_hard_link_frees_nothing(train_run):
    run = RunFolder(train_run(epochs=1))
    plan = plan_deletions(run, logs=False, previous=False, everything=True)
    only = type(plan)(tuple(one for one in plan.deletions if one.what == "checkpoints/step-00000004"), ())
    assert only.deletions
    assert only.freed_bytes == 0
    assert plan.freed_bytes > 0


def test_clean_leaves_no_lock_file_behind(command, mine):
    (mine / ".lock").unlink()
    command("clean", "mine", "--yes")
    assert not (mine / ".lock").exists()
