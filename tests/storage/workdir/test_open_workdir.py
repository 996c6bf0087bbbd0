from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from functools import partial
from pathlib import Path

import pytest
import torch

import hookpoint
from hookpoint import Loop, Runner
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import BadLoop, CannotResume, CannotSave
from hookpoint.storage.checkpoint_store import CheckpointStore


@pytest.fixture
def run(tmp_path, opened, write):
    """Make a finished run with checkpoints at these steps, and its logs; return its workdir."""

    def go(*steps, workdir=tmp_path / "run", **tags):
        store = opened("never", workdir=workdir)
        for step in steps:
            write(store, step, **tags)
        store.close()
        for name in ("run.json", "scalars.jsonl", "events.jsonl"):
            (workdir / name).write_text(name)
        (workdir / "tensorboard").mkdir()
        (workdir / "tensorboard" / "events").write_text("x")
        (workdir / "hyper.txt").write_text("lr: 1")
        return workdir

    return go


@pytest.fixture
def tree():
    """Return the relative paths of all files in a folder."""
    return lambda folder: sorted(
        os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names
    )


@pytest.fixture
def moved_with_a_link(tmp_path):
    """Move a checkpoint of a workdir elsewhere, and leave a link to it in its place."""

    def go(workdir, name):
        path = workdir / "checkpoints" / name
        path.rename(tmp_path / name)
        path.symlink_to(tmp_path / name)
        return path

    return go


def resumed_step(store):
    return store.resumed.state["clocks"]["step"]


def listed(workdir):
    return sorted(os.listdir(workdir))


# Choosing a checkpoint


def test_a_stray_file_is_logged_and_the_checkpoint_is_used(run, opened, caplog):
    workdir = run(1, 2)
    folder = workdir / "checkpoints" / "step-00000002"
    (folder / "notes.txt").write_text("the best so far")
    store = opened()
    assert store.resumed.path == folder
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == f"{folder}: some files are ignored, because its manifest.json does not list them: 'notes.txt'"
    assert (folder / "notes.txt").exists()
    assert listed(workdir / "checkpoints") == ["last", "step-00000001", "step-00000002"]


def test_a_stray_file_in_a_best_folder_stays(run, opened, caplog):
    workdir = run(1, 2, best_x=None)
    for name in ("best-x", "step-00000002"):
        (workdir / "checkpoints" / name / f"notes-of-{name}").write_text("mine")
    opened()
    assert (workdir / "checkpoints" / "best-x" / "notes-of-best-x").exists()


@pytest.mark.parametrize("resume", ["auto", "must", "path", "workdir"])
def test_a_checkpoint_that_is_a_link_raises(resume, run, opened, moved_with_a_link, tree, tmp_path):
    workdir = run(1, 2)
    link = moved_with_a_link(workdir, "step-00000002")
    before = tree(workdir)
    with pytest.raises(CannotResume) as raised:
        opened({"path": link, "workdir": workdir}.get(resume, resume))
    assert str(raised.value) == (
        f"{link} is a symbolic link, not a checkpoint folder: move the folder here, or delete the link."
    )
    assert tree(workdir) == before
    link.unlink()
    assert resumed_step(opened()) == 1


def test_a_dangling_link_raises(run, opened, moved_with_a_link, tmp_path):
    workdir = run(1)
    shutil.rmtree(moved_with_a_link(workdir, "step-00000001").resolve())
    with pytest.raises(CannotResume, match="is a symbolic link"):
        opened()


def test_a_link_older_than_a_good_checkpoint_is_left_alone(run, opened, write, moved_with_a_link, tmp_path):
    workdir = run(1, 2, best_x=None)
    link = moved_with_a_link(workdir, "step-00000001")
    store = opened()
    assert resumed_step(store) == 2
    write(store, 3, best_x=None)
    assert link.is_symlink()
    assert os.listdir(tmp_path / "step-00000001")


def test_a_best_folder_that_is_a_link_becomes_a_folder(run, opened, moved_with_a_link, tmp_path):
    workdir = run(1, best_x=None)
    link = moved_with_a_link(workdir, "best-x")
    opened()
    assert link.is_dir()
    assert not link.is_symlink()
    assert os.listdir(tmp_path / "best-x")


def test_links_with_other_names_are_followed(run, opened, tmp_path):
    workdir = run(1, 2)
    (tmp_path / "mine").symlink_to(workdir)
    (tmp_path / "production").symlink_to(workdir / "checkpoints" / "step-00000001")
    for path, step in ((workdir / "checkpoints" / "last", 2), (tmp_path / "mine", 2), (tmp_path / "production", 1)):
        store = opened(path)
        assert resumed_step(store) == step
        store.close()


def test_auto_in_an_empty_workdir_starts_from_scratch(opened, tmp_path):
    assert opened().resumed is None
    assert listed(tmp_path / "run") == [".lock"]
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_opening_a_workdir_repeatedly_moves_nothing(opened, tmp_path):
    for _ in range(3):
        opened().close()
    assert listed(tmp_path / "run") == [".lock"]


def test_auto_picks_the_newest_by_step_and_number_and_not_by_file_time(run, opened):
    workdir = run(5, 100, 20, 100, 99)
    for age, name in enumerate(sorted(os.listdir(workdir / "checkpoints"))):
        os.utime(workdir / "checkpoints" / name, (2_000_000_000 - age,) * 2, follow_symlinks=False)
    store = opened()
    assert store.resumed.path == workdir / "checkpoints" / "step-00000100-2"
    assert resumed_step(store) == 100
    assert (workdir / "scalars.jsonl").exists()


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_damaged_newer_checkpoints_are_moved_aside_and_logged(resume, run, opened, flip, names, caplog):
    workdir = run(1, 2, 3)
    flip(workdir / "checkpoints" / "step-00000003" / "state.json", 5)
    (workdir / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    (workdir / "checkpoints" / "damaged-step-00000003").mkdir()
    assert resumed_step(opened(resume)) == 1
    assert names() == [
        "damaged-step-00000002",
        "damaged-step-00000003",
        "damaged-step-00000003.2",
        "last",
        "step-00000001",
    ]
    assert "step-00000003 is damaged: state.json changed after it was written." in caplog.text
    assert "step-00000002 is damaged: it has no manifest.json." in caplog.text
    assert os.readlink(workdir / "checkpoints" / "last") == "step-00000001"


def test_damaged_older_checkpoints_are_left_alone(run, opened, flip, names):
    workdir = run(1, 2)
    flip(workdir / "checkpoints" / "step-00000001" / "state.json", 5)
    assert resumed_step(opened()) == 2
    assert names() == ["last", "step-00000001", "step-00000002"]


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_open_raises_and_touches_nothing_if_all_checkpoints_are_damaged(resume, run, opened, flip, tree):
    workdir = run(1, 2)
    for name in ("step-00000001", "step-00000002"):
        flip(workdir / "checkpoints" / name / "state.json", -1)
    before = tree(workdir)
    with pytest.raises(CannotResume) as caught:
        opened(resume)
    assert str(caught.value).splitlines() == [
        f"all checkpoints in {workdir}/checkpoints are damaged.",
        f"  {workdir}/checkpoints/step-00000002 is damaged: state.json changed after it was written.",
        f"  {workdir}/checkpoints/step-00000001 is damaged: state.json changed after it was written.",
        '  start     over with resume="never", which moves them to previous/',
        "  restore   them from a backup",
    ]
    assert tree(workdir) == before
    assert opened("never").resumed is None, "the lock must have been let go of"


def test_must_raises_without_a_checkpoint(opened, tmp_path):
    with pytest.raises(CannotResume, match=rf"^there is no checkpoint in {tmp_path}/run to resume from\."):
        opened("must")


def test_a_permission_error_is_not_damage(run, opened, failing, names):
    run(1, 2)
    before = names()
    with (
        failing(2, errno.EACCES, select=lambda one: one.name == "open" and one.path.endswith(".json")),
        pytest.raises(CannotResume, match=r"step-00000002 cannot be read: Permission denied"),
    ):
        opened()
    assert names() == before


def test_a_checkpoint_of_an_exception_is_used_only_by_its_path(run, opened, write, caplog):
    workdir = run(1)
    store = opened()
    path = write(store, 2, exception=None).path
    assert os.readlink(workdir / "checkpoints" / "last") == "step-00000001"
    store.close()
    with caplog.at_level(logging.INFO, "hookpoint"):
        store = opened()
    assert resumed_step(store) == 1
    assert f"{path} is skipped: it was saved when an exception ended the run" in caplog.text
    store.close()
    assert resumed_step(opened(path)) == 2


def test_auto_and_must_ignore_the_only_checkpoint_of_an_exception(run, opened, tmp_path):
    run(3, exception=None)
    with pytest.raises(CannotResume):
        opened("must")
    assert opened().resumed is None
    assert listed(tmp_path / "run" / "previous" / "001" / "checkpoints") == ["step-00000003"]


# The earlier run


def test_with_resume_never_only_the_earlier_run_is_moved_aside(run, opened, tree):
    workdir = run(1)
    made = tree(workdir)
    assert opened("never").resumed is None
    assert listed(workdir) == [".lock", "hyper.txt", "previous"]
    assert tree(workdir / "previous" / "001") == [name for name in made if name not in (".lock", "hyper.txt")]


def test_earlier_runs_are_numbered(run, opened, tmp_path):
    run(1)
    run(2)
    opened("never")
    assert listed(tmp_path / "run" / "previous") == ["001", "002"]


def test_auto_moves_logs_without_checkpoints_aside(run, opened):
    workdir = run()
    assert opened().resumed is None
    assert listed(workdir) == [".lock", "hyper.txt", "previous"]


# Paths


def test_a_path_may_be_a_checkpoint_a_best_folder_or_a_workdir(run, opened, tmp_path):
    other = run(1, 2, workdir=tmp_path / "other", best_x=None)
    for path, step in [
        (other / "checkpoints" / "step-00000001", 1),
        (other / "checkpoints" / "best-x", 2),
        (other / "checkpoints", 2),
        (other, 2),
        (str(other), 2),
        (other / "checkpoints" / "last", 2),
    ]:
        store = opened(path)
        assert resumed_step(store) == step
        store.close()
    assert listed(tmp_path / "run") == [".lock"]


def test_resuming_from_another_workdir_moves_the_current_run_aside(run, opened, tmp_path):
    here, there = run(5), run(1, workdir=tmp_path / "other")
    assert resumed_step(opened(there)) == 1
    assert listed(here / "previous" / "001") == ["checkpoints", "events.jsonl", "run.json", "scalars.jsonl", "tensorboard"]
    assert not (here / "checkpoints").exists()
    assert listed(there / "checkpoints") == ["last", "step-00000001"]


@pytest.mark.parametrize("by", ["step-00000002", "best-x"])
def test_resuming_from_an_earlier_checkpoint_moves_later_checkpoints_aside(by, run, opened, write, caplog):
    workdir = run(1)
    store = opened()
    write(store, 2, best_x=None)
    for step in (3, 4):
        write(store, step, best_y=None)
    store.close()
    store = opened(workdir / "checkpoints" / by)
    assert resumed_step(store) == 2
    assert listed(workdir / "checkpoints") == ["best-x", "last", "step-00000001", "step-00000002"]
    assert os.readlink(workdir / "checkpoints" / "last") == "step-00000002"
    assert listed(workdir / "previous" / "001" / "checkpoints") == ["best-y", "step-00000003", "step-00000004"]
    assert "the run resumes from step-00000002; later checkpoints were moved to" in caplog.text
    store.close()
    assert resumed_step(opened()) == 2, "a kill right after must not bring the abandoned ones back"


def test_a_path_never_falls_back_to_an_older_checkpoint(run, opened, flip):
    workdir = run(1, 2)
    flip(workdir / "checkpoints" / "step-00000002" / "state.json", 0)
    for path in (workdir / "checkpoints" / "step-00000002", workdir):
        with pytest.raises(CannotResume, match=r"step-00000002 is damaged: state\.json changed after"):
            opened(path)
    assert listed(workdir / "checkpoints") == ["last", "step-00000001", "step-00000002"]


@pytest.mark.parametrize("what", ["missing", "file", "empty", "half"])
def test_a_path_without_a_checkpoint_raises(what, opened, tmp_path):
    path = tmp_path / ("step-00000001" if what == "half" else "latest")
    if what == "file":
        path.write_text("x")
    elif what != "missing":
        path.mkdir()
    expected = {
        "missing": 'there is no folder .*latest to resume from.\n  give      "auto", "must", "never", a workdir or',
        "file": "there is no folder",
        "empty": "there is no checkpoint in",
        "half": "step-00000001 is damaged: it has no manifest.json",
    }
    with pytest.raises(CannotResume, match=expected[what]):
        opened(path)


# Identity


def test_a_run_with_a_different_identity_raises_and_nothing_is_moved(run, opened, write, tmp_path, tree):
    store = opened(identity={"world_size": 2, "seed": 1})
    for step in (1, 2):
        write(store, step)
    store.close()
    before = tree(tmp_path / "run")
    for resume in ("auto", "must", tmp_path / "run" / "checkpoints" / "step-00000001"):
        with pytest.raises(
            CannotResume, match=r"does not match this run\.\nwhat +saved +now +verdict\nworld size +2 +1 +refused"
        ):
            opened(resume, identity={"world_size": 1, "seed": 1})
    assert tree(tmp_path / "run") == before


def test_a_run_with_different_settings_warns_once(opened, write, caplog):
    store = opened(identity={"seed": 1, "python": "3.11"})
    write(store, 1)
    store.close()
    opened(identity={"seed": 2, "python": "3.12"})
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "was saved by a run with different settings:\nwhat  saved  now  verdict\nseed  1      2    warned" in warnings[0]
    assert "python" not in warnings[0]


# The workdir itself


def test_leftovers_of_a_kill_are_removed_and_other_hidden_files_stay(run, opened, names):
    workdir = run(1)
    folder = workdir / "checkpoints"
    shutil.copytree(folder / "step-00000001", folder / ".staging-step-00000009-0123456789abcdef")
    shutil.copytree(folder / "step-00000001", folder / ".deleting-step-00000000-0123456789abcdef")
    (folder / ".staging-last-0123456789abcdef").symlink_to("step-00000001")
    (workdir / ".probe-writable-0123456789abcdef").write_text("?")
    (folder / ".mine").write_text("x")
    opened()
    assert names() == [".mine", "last", "step-00000001"]
    assert listed(workdir)[:2] == [".lock", "checkpoints"]


def test_a_file_in_place_of_the_workdir_raises(tmp_path):
    (tmp_path / "file").write_text("x")
    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        named = f"^{tmp_path / 'file'} is a file, not a folder.\n  give      another folder, or move the file away$"
        with pytest.raises(CannotSave, match=named):
            CheckpointStore(workdir).open("auto", {})


@pytest.mark.parametrize("operation", ["mkdir", "create", "write", "fsync"])
def test_a_workdir_that_cannot_be_written_raises(operation, tmp_path, failing):
    store = CheckpointStore(tmp_path / "run")
    with (
        failing(1, errno.EROFS, select=lambda one: one.name == operation),
        pytest.raises(CannotSave, match=rf"^{tmp_path}/run could not be written: Read-only file system") as caught,
    ):
        store.open("auto", {})
    assert caught.value.errno == errno.EROFS
    assert store.open("auto", {}) is None, "the lock must have been let go of"
    store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_workdir_without_permission_raises(tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(CannotSave, match="Permission denied"):
        CheckpointStore(tmp_path / "run").open("auto", {})


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://bucket", "file:///tmp/run", "hdfs+x://host/run"])
@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("make", [Loop, partial(Runner, torch.nn.Linear(1, 1))])
def test_a_url_raises_and_nothing_is_created(tmp_path, monkeypatch, url, kind, make):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadLoop) as caught:
        make(workdir=kind(url))
    assert str(caught.value) == (
        f"workdir={str(kind(url))!r} is a URL; a workdir must be a local folder.\n"
        '  give      workdir="runs/mine", and callbacks=[Mirror("s3://...")] for a copy of it\n'
        "  mount     the bucket with s3fs, gcsfuse or blobfuse, and pass the mount point"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [Loop, partial(Runner, torch.nn.Linear(1, 1))])
def test_an_empty_workdir_raises(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadLoop, match=r"^workdir is empty, and would be the current folder"):
        make(workdir="")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("workdir", ["~/runs/mine", "~", Path("~/runs")])
@pytest.mark.parametrize("make", [Loop, partial(Runner, torch.nn.Linear(1, 1))])
def test_a_workdir_in_an_unexpanded_home_folder_raises(tmp_path, monkeypatch, workdir, make):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadLoop) as caught:
        make(workdir=workdir)
    assert str(caught.value) == (
        f"workdir={str(workdir)!r} would create a folder called ~ in the current folder.\n"
        f"  write     workdir=os.path.expanduser({str(workdir)!r})"
    )
    assert os.listdir(tmp_path) == []


def test_a_folder_may_have_a_colon_in_its_name(tmp_path):
    store = CheckpointStore(tmp_path / "12:30" / "run")
    store.open("auto", {})
    store.close()
    assert (tmp_path / "12:30" / "run").is_dir()


# Files that hookpoint did not create


def put_foreign(workdir):
    folder = workdir / "checkpoints"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "notes.txt").write_text("mine")
    (folder / "epoch=3.ckpt").write_text("theirs")
    (folder / ".hidden").write_text("stays")


def train_an_epoch_more(workdir, epochs):
    model = torch.nn.Linear(1, 1).requires_grad_(False)
    with hookpoint.Loop([ModelSaver()], model=model, workdir=workdir, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(2)):
                pass
    return run


@pytest.mark.parametrize("epochs", [0, 1])
def test_foreign_files_among_the_checkpoints_are_moved_with_one_message(epochs, tmp_path, caplog):
    if epochs:
        train_an_epoch_more(tmp_path, epochs)
    put_foreign(tmp_path)
    caplog.clear()
    run = train_an_epoch_more(tmp_path, epochs + 1)
    assert run.step == 2 * (epochs + 1)
    moved = tmp_path / "previous" / "001" / "checkpoints"
    assert sorted(path.name for path in moved.iterdir()) == ["epoch=3.ckpt", "mine"]
    assert (moved / "mine" / "notes.txt").read_text() == "mine"
    left = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {".hidden"}
    assert left == {"last", *(f"step-{2 * epoch:08d}" for epoch in range(1, epochs + 2))}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        (
            f"{tmp_path / 'checkpoints'} contains files that hookpoint did not create;"
            f" they were moved to {moved.parent}: epoch=3.ckpt, mine"
        )
    ]


def test_foreign_files_stay_if_the_run_cannot_start(tmp_path):
    put_foreign(tmp_path)
    with pytest.raises(CannotResume), hookpoint.Loop([ModelSaver()], workdir=tmp_path, resume="must"):
        pass
    assert not (tmp_path / "previous").exists()
