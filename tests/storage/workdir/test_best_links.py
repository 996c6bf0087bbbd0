from __future__ import annotations

import errno
import json
import os
import shutil

import pytest

from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.retention import KeepNewest

# Saves three times, and is killed at the n-th operation of the last save: one process for each n, until one survives.
KILLED = """
import os, signal, sys
from hookpoint.core.checkpoint.store import Request
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted

def save(workdir, at):
    store = CheckpointStore(workdir)
    store.open("auto", {})
    for step in (1, 2):
        store.write({"step": step}, step=step, elapsed=0.0, request=Request({"best-x": None}, in_background=False))
    seen = []

    def kill(operation, proceed):
        if "best-x" in operation.path and operation.changes:
            seen.append(operation.name)
            if len(seen) == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return proceed()

    with intercepted(kill):
        store.write({"step": 3}, step=3, elapsed=0.0, request=Request({"best-x": None}, in_background=False))

at, code = 0, -signal.SIGKILL
while code == -signal.SIGKILL:
    at += 1
    child = os.fork()
    if child == 0:
        save(os.path.join(sys.argv[1], str(at)), at)
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(at)
sys.exit(code)
"""


def step_of(folder):
    return read_checkpoint(folder).state["clocks"]["step"]


def test_a_best_folder_links_the_files_of_the_newest_checkpoint_with_its_tag(opened, write, tmp_path):
    store = opened()
    best = tmp_path / "run" / "checkpoints" / "best-x"
    for step, tags in [(1, {"best_x": None}), (2, {"last": None}), (3, {"best_x": None, "last": None}), (4, {"last": None})]:
        write(store, step, **tags)
    assert step_of(best) == 3
    source = best.with_name("step-00000003")
    assert all(os.path.samefile(best / name, source / name) for name in ("manifest.json", "state.json"))
    assert sorted(os.listdir(best)) == sorted(os.listdir(source))


def test_a_best_folder_outlives_its_source_checkpoint(opened, write, tmp_path):
    store = opened()
    write(store, 1, best_x=lambda kept: [])
    for step in (2, 3, 4):
        write(store, step, last=KeepNewest(1))
    best = tmp_path / "run" / "checkpoints" / "best-x"
    assert not best.with_name("step-00000001").exists()
    store.close()
    opened("must")
    assert step_of(best) == 1


def test_a_best_folder_is_a_copy_without_hard_links(opened, write, failing, tmp_path):
    store = opened()
    with failing(1, errno.EPERM, select=lambda one: one.name == "link", lasting=True):
        write(store, 1, best_x=None)
        store.close()
        opened("must")
    best = tmp_path / "run" / "checkpoints" / "best-x"
    assert step_of(best) == 1
    assert not os.path.samefile(best / "state.json", best.with_name("step-00000001") / "state.json")


def test_a_failed_link_keeps_the_old_best_folder_and_the_checkpoint(opened, write, failing, caplog, tmp_path):
    store = opened()
    write(store, 1, best_x=None)
    best = tmp_path / "run" / "checkpoints" / "best-x"
    for step, name in enumerate(["mkdir", "link", "rename"], 2):
        with failing(1, select=lambda one, name=name: one.name == name and ".staging-best-x" in one.path + (one.target or "")):
            assert write(store, step, best_x=None).step == step
        assert step_of(best) == 1
    assert caplog.text.count("best-x could not be linked to") == 3
    store.close()
    opened("must")
    assert step_of(best) == 4


def test_the_next_start_repairs_the_best_folder_after_a_kill(tmp_path, opened, python):
    (last,) = map(int, python(KILLED, tmp_path))
    assert last > 6
    for at in range(1, last + 1):
        workdir = tmp_path / str(at)
        store = opened("must", workdir=workdir)
        best = workdir / "checkpoints" / "best-x"
        assert store.resumed.state["step"] == read_checkpoint(best).state["step"] == 3
        assert sorted(os.listdir(workdir / "checkpoints")) == ["best-x", "last", *(f"step-0000000{step}" for step in (1, 2, 3))]
        store.close()


@pytest.mark.parametrize("how", ["gone", "half", "old", "no-manifest"])
def test_a_broken_best_folder_is_rebuilt_from_the_newest_checkpoint(how, opened, write, tmp_path):
    store = opened()
    for step in (1, 2):
        write(store, step, best_x=None)
    write(store, 3)
    store.close()
    best = tmp_path / "run" / "checkpoints" / "best-x"
    if how == "half":
        (best / "state.json").unlink()
    elif how == "no-manifest":
        (best / "manifest.json").unlink()
    else:
        shutil.rmtree(best)
    if how == "old":
        shutil.copytree(best.with_name("step-00000001"), best)
    opened("must")
    assert step_of(best) == 2


def test_a_best_folder_with_a_damaged_source_uses_the_previous_checkpoint(opened, write, flip, tmp_path):
    store = opened()
    for step in (1, 2, 3):
        write(store, step, best_x=None)
    store.close()
    best = tmp_path / "run" / "checkpoints" / "best-x"
    flip(best.with_name("step-00000003") / "state.json", 4)  # and with it the same file in best-x
    opened("must")
    assert step_of(best) == 2


def test_a_damaged_best_folder_without_a_source_is_moved_aside(opened, write, flip, names, tmp_path, caplog):
    store = opened()
    write(store, 1, best_x=None)
    write(store, 2)
    store.close()
    folder = tmp_path / "run" / "checkpoints"
    shutil.rmtree(folder / "step-00000001")
    flip(folder / "best-x" / "state.json", 4)
    opened("must")
    assert names() == ["damaged-best-x", "last", "step-00000002"]
    assert "best-x is damaged: state.json changed after it was written." in caplog.text


def test_last_is_a_relative_link_that_survives_a_move(opened, write, tmp_path):
    store = opened()
    for step in (1, 2):
        write(store, step)
    store.close()
    (tmp_path / "run").rename(tmp_path / "moved")
    last = tmp_path / "moved" / "checkpoints" / "last"
    assert os.readlink(last) == "step-00000002"
    assert json.loads((last / "manifest.json").read_text())["step"] == 2


def test_there_is_no_last_without_symbolic_links(opened, write, failing, names):
    with failing(1, errno.EPERM, select=lambda one: one.name == "symlink", lasting=True):
        store = opened()
        write(store, 1)
        store.close()
        opened("must")
    assert names() == ["step-00000001"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_file_or_folder_named_last_is_left_alone(what, opened, write, tmp_path):
    last = tmp_path / "run" / "checkpoints" / "last"
    store = opened()
    last.parent.mkdir()
    last.write_text("mine") if what == "file" else last.mkdir()
    write(store, 1)
    store.close()
    opened("must")
    assert not last.is_symlink()
    assert last.is_dir() or last.read_text() == "mine"


def test_a_best_folder_named_by_an_earlier_release_is_renamed(tmp_path, opened, write):
    store = opened()
    write(store, 1, **{"best-val/loss": None})
    store.close()
    folders = tmp_path / "run" / "checkpoints"
    (folders / "best-val--loss").rename(folders / "best-val-loss-7cd2be30730b")
    opened().close()
    assert sorted(path.name for path in folders.glob("best-*")) == ["best-val--loss"]
