from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch

from hookpoint.core.checkpoint.store import Request, ResumableStore, Store
from hookpoint.core.errors import CannotSave, NotFinite, NotSaveable, OutsideRun, WorkdirInUse
from hookpoint.storage.checkpoint import available_memory, checkpoint_folder
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted
from hookpoint.storage.retention import KeepNewest


@pytest.fixture
def gate():
    """Block every write of a manifest until `gate.set()`."""
    event = threading.Event()

    def by(operation, proceed):
        if operation.name == "create" and operation.path.endswith("manifest.json"):
            assert event.wait(30)
        return proceed()

    with intercepted(by):
        yield event
        event.set()


def manifest(saved):
    return json.loads((Path(saved.path) / "manifest.json").read_text())


def test_a_checkpoint_store_is_a_resumable_store(tmp_path):
    store: ResumableStore = CheckpointStore(tmp_path)
    small: Store = store
    assert small is store


def test_a_save_returns_its_path_and_writes_a_manifest(opened, write, tmp_path, same):
    store = opened(identity={"seed": 3})
    state = {"clocks": {"step": 1200, "epoch": 2}, "callbacks": {}}
    saved = write(store, 1200, elapsed=12.5, state=state, last=None, mine=None)
    assert saved.path == tmp_path / "run" / "checkpoints" / "step-00001200"
    assert (saved.step, saved.tags) == (1200, ["last", "mine"])
    assert saved.seconds > 0
    assert same(read_checkpoint(saved.path).state, state)
    written = manifest(saved)
    assert {key: written[key] for key in ("step", "elapsed", "tags", "clocks", "identity", "kind")} == {
        "step": 1200,
        "elapsed": 12.5,
        "tags": ["last", "mine"],
        "clocks": {"step": 1200, "epoch": 2},
        "identity": {"seed": 3},
        "kind": "full",
    }


def test_save_returns_the_path(opened):
    path = opened().save({"clocks": {"elapsed": 2.5}}, step=3, tags=["a"])
    assert path.name == "step-00000003"
    assert json.loads((path / "manifest.json").read_text())["elapsed"] == 2.5


def test_a_second_save_of_a_step_gets_its_own_folder(opened, write, names):
    store = opened()
    for _ in range(3):
        write(store, 5)
    assert names() == ["last", "step-00000005", "step-00000005-2", "step-00000005-3"]
    assert os.readlink(store.workdir / "checkpoints" / "last") == "step-00000005-3"


def test_hostile_tags_never_become_paths(opened, write, tmp_path):
    store = opened()
    for step, tag in enumerate(["../../evil", "best-../../evil", "best-" + "x" * 500, "best-\n", ""]):
        store.write({}, step=step, elapsed=0.0, request=Request({tag: None}, in_background=False))
    assert sorted(os.listdir(tmp_path)) == ["run"]
    assert sorted(os.listdir(tmp_path / "run")) == [".lock", "checkpoints"]
    assert len([name for name in os.listdir(tmp_path / "run" / "checkpoints") if name.startswith("best-")]) == 3


def test_an_unsupported_value_raises_and_nothing_is_written(opened, write, names):
    store = opened()
    for in_background in (False, True):
        with pytest.raises(NotSaveable, match=r"^callbacks\['Mine'\] is an object;"):
            write(store, 1, state={"callbacks": {"Mine": object()}}, in_background=in_background)
    with pytest.raises(NotSaveable, match=r"^callbacks\['Mine'\] is an object;"):
        store.check({"callbacks": {"Mine": object()}})
    store.check({"callbacks": {"Mine": torch.ones(1)}})
    assert names() == []


def test_a_store_can_be_used_only_between_open_and_close(tmp_path, write):
    store = CheckpointStore(tmp_path)
    store.close()
    with pytest.raises(OutsideRun, match="is not open"):
        write(store, 1)
    store.open("auto", {})
    write(store, 1)
    store.close()
    store.close()
    with pytest.raises(OutsideRun, match="is not open"):
        store.save({}, step=2, tags=[])


def test_a_second_store_of_a_workdir_raises_until_the_first_is_closed(opened, write, tmp_path):
    first = opened()
    before = sorted(os.listdir(first.workdir))
    with pytest.raises(WorkdirInUse):
        opened()
    assert sorted(os.listdir(first.workdir)) == before
    first.close()
    write(opened(), 1)


# Weights that are not finite


@pytest.mark.parametrize("in_background", [False, True], ids=["at-once", "background"])
def test_weights_that_are_not_finite_are_never_saved(in_background, opened, write, names):
    store = opened()
    state = {"parts": {"model": {"w": torch.tensor([1.0, math.nan])}}, "finite": {"model": ["w"]}}
    with pytest.raises(NotFinite, match=r"^w of the model contains NaN or infinity\."):
        write(store, 1, state=state, in_background=in_background)
        store.collect(wait=True)
    assert names() == []


def test_the_list_of_finite_tensors_is_not_saved_with_the_state(opened, write):
    state = {"parts": {"model": {"w": torch.ones(1), "mask": torch.tensor(-math.inf)}}, "finite": {"model": ["w"]}}
    saved = write(opened(), 1, state=state)
    assert "finite" not in read_checkpoint(saved.path).state
    assert "finite" in state


# In the background


def test_a_background_save_is_not_affected_by_later_changes(opened, write, gate, same):
    store = opened()
    weight, moments, steps = torch.ones(1000), torch.zeros(1000), [1]
    state = {"parts": {"model": {"w": weight}, "optimizer": {0: {"m": moments}}}, "callbacks": {"Mine": steps}}
    assert write(store, 1, state=state, in_background=True) is None
    weight += 1
    moments -= 1
    steps.append(2)
    state["parts"]["optimizer"][0]["m"] = None
    assert store.collect() == []
    gate.set()
    (saved,) = store.collect(wait=True)
    assert same(
        read_checkpoint(saved.path).state,
        {
            "parts": {"model": {"w": torch.ones(1000)}, "optimizer": {0: {"m": torch.zeros(1000)}}},
            "callbacks": {"Mine": [1]},
        },
    )
    assert store.collect(wait=True) == []


def test_a_background_save_without_memory_for_a_copy_is_synchronous(opened, write, tmp_path, monkeypatch, caplog):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 24000000 kB\nMemAvailable:        8 kB\n")
    monkeypatch.setattr(available_memory, "MEMINFO", meminfo)
    store, state = opened(), {"parts": {"model": {"w": torch.ones(2**20)}}}
    assert [write(store, step, state=state, in_background=True).step for step in (1, 2)] == [1, 2]
    assert caplog.messages == ["checkpoints are not written in the background: a copy needs 4 MiB, and 0 MiB are free"]


def test_a_second_background_save_waits_for_the_first(opened, write, names, gate):
    store = opened()
    threading.Timer(0.2, gate.set).start()
    for step in (1, 2, 3):
        write(store, step, in_background=True)
        assert len([name for name in names() if name.startswith("step-")]) >= step - 1
    assert [saved.step for saved in store.collect(wait=True)] == [1, 2, 3]


def test_an_error_in_a_background_save_is_raised_once(opened, write, failing, names):
    store = opened()
    with failing(3):
        assert write(store, 1, in_background=True) is None
        with pytest.raises(CannotSave, match="No space left on device") as caught:
            store.collect(wait=True)
    assert caught.value.errno == errno.ENOSPC
    assert store.collect(wait=True) == []
    assert names() == []
    assert write(store, 2) is not None


def test_an_error_does_not_hide_the_save_before_it(opened, write, failing):
    store = opened()
    write(store, 1, in_background=True)
    store._background.wait()
    with failing(1):
        write(store, 2, in_background=True)
        with pytest.raises(CannotSave):
            store.collect(wait=True)
    assert [saved.step for saved in store.collect()] == [1]


def test_an_error_that_was_not_collected_is_logged_on_close(opened, write, failing, caplog):
    store = opened()
    with failing(3):
        write(store, 1, in_background=True)
        store.close()
    assert "a checkpoint was not saved: " in caplog.text
    assert "No space left on device" in caplog.text


def test_closing_waits_for_the_background_save(opened, write, names, gate):
    store = opened()
    write(store, 1, in_background=True)
    threading.Timer(0.2, gate.set).start()
    store.close()
    assert names() == ["last", "step-00000001"]


def test_a_process_does_not_end_before_its_background_save_is_done(tmp_path, python):
    program = f"""
import time
from hookpoint.core.checkpoint.store import Request
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted

def slowly(operation, proceed):
    if operation.name == "create":
        time.sleep(0.2)
    return proceed()

intercepted(slowly).__enter__()
store = CheckpointStore({str(tmp_path)!r})
store.open("auto", {{}})
store.write({{"a": 1}}, step=1, elapsed=0.0, request=Request({{"mine": None}}))
"""
    python(program)
    assert read_checkpoint(tmp_path / "checkpoints" / "step-00000001").state == {"a": 1}


# Retention


def steps(store):
    folder = store.workdir / "checkpoints"
    return [int(name[5:]) for name in sorted(os.listdir(folder)) if name.startswith("step-")]


def test_checkpoints_that_no_rule_keeps_are_deleted(opened, write, names):
    store = opened()
    for step in range(1, 7):
        write(store, step, last=KeepNewest(3))
    assert steps(store) == [4, 5, 6]
    assert names() == ["last", "step-00000004", "step-00000005", "step-00000006"]


def test_a_tag_without_a_rule_keeps_its_checkpoints_forever(opened, write):
    store = opened()
    write(store, 1, manual=None)
    write(store, 2, manual=None, last=KeepNewest(1))
    for step in range(3, 7):
        write(store, step, last=KeepNewest(1))
    assert steps(store) == [1, 2, 5, 6]


def test_a_checkpoint_stays_if_the_rule_of_any_tag_keeps_it(opened, write):
    store = opened()
    for step in range(1, 9):
        tags = {"last": KeepNewest(1)} | ({"best_x": KeepNewest(2)} if step in (1, 3, 4) else {})
        write(store, step, **tags)
    assert steps(store) == [3, 4, 7, 8]


@pytest.mark.parametrize("tag", ["signal", "stop", "end"])
def test_checkpoints_saved_only_to_resume_are_deleted_later(tag, opened, write):
    store = opened()
    for step in range(1, 4):
        write(store, step, **{tag: None})
    assert steps(store) == [2, 3]


def test_the_two_newest_resumable_checkpoints_are_never_deleted(opened, write):
    store = opened()
    for step in range(1, 4):
        write(store, step, last=lambda kept: [])
    write(store, 4, exception=None)
    write(store, 5, last=lambda kept: [])
    assert steps(store) == [3, 4, 5]


def test_rules_apply_to_checkpoints_of_earlier_starts_once_they_are_known(opened, write):
    store = opened()
    for step in (1, 2, 3):
        write(store, step, last=KeepNewest(5))
    store.close()
    store = opened("must")
    write(store, 4, other=None)
    assert steps(store) == [1, 2, 3, 4]
    write(store, 5, last=KeepNewest(1))
    assert steps(store) == [4, 5]


def test_rules_apply_even_if_their_saver_does_not_save_this_time(opened):
    store = opened()
    for step in range(1, 6):
        tags = {"a": None} if step < 3 else {"b": None}
        request = Request(tags, in_background=False, rules={"a": KeepNewest(1), "b": KeepNewest(1)})
        store.write({}, step=step, elapsed=0.0, request=request)
    assert steps(store) == [2, 4, 5]


def test_a_checkpoint_without_tags_is_kept(opened, write):
    store = opened()
    store.save({}, step=1, tags=[])
    for step in (2, 3, 4):
        write(store, step, last=KeepNewest(1))
    assert steps(store) == [1, 3, 4]


def test_a_rule_gets_steps_and_times_oldest_first(opened, write):
    seen = []

    def rule(kept):
        seen.append([(one.name, one.step, one.elapsed) for one in kept])
        return kept

    store = opened()
    for step in (9, 10):
        write(store, step, elapsed=step / 2, last=rule)
    assert seen[-1] == [("step-00000009", 9, 4.5), ("step-00000010", 10, 5.0)]


def test_a_rule_that_fails_deletes_nothing_and_the_save_succeeds(opened, write, caplog):
    store = opened()
    for step in range(1, 5):
        write(store, step, last=lambda kept: 1 / 0)
    assert steps(store) == [1, 2, 3, 4]
    assert "could not be deleted: division by zero" in caplog.text


@pytest.mark.parametrize("operation", ["rename", "unlink", "rmdir"])
def test_a_failed_deletion_is_logged_and_leaves_nothing_half_deleted(operation, opened, write, failing, caplog):
    store = opened()
    for step in (1, 2):
        write(store, step, last=KeepNewest(1))

    def of_the_deletion(one):
        return one.name == operation and ("deleting" in (one.target or "") or "deleting" in one.path)

    with failing(1, errno.EIO, select=of_the_deletion, lasting=True):
        assert write(store, 3, last=KeepNewest(1)).step == 3
    assert "Input/output error" in caplog.text
    for step in steps(store):
        read_checkpoint(store.workdir / "checkpoints" / f"step-{step:08d}")
    write(store, 4, last=KeepNewest(1))
    assert steps(store) == [3, 4]
    assert [name for name in os.listdir(store.workdir / "checkpoints") if name.startswith(".")] == []


def test_a_checkpoint_is_renamed_and_synced_before_it_is_deleted(opened, write, failing):
    store = opened()
    for step in (1, 2):
        write(store, step, last=KeepNewest(1))
    with failing(0) as seen:
        write(store, 3, last=KeepNewest(1))
    hidden = seen.index(("rename", str(store.workdir / "checkpoints" / "step-00000001")))
    assert seen[hidden + 1] == ("fsync", str(store.workdir / "checkpoints"))
    assert [name for name, _ in seen[hidden + 2 :]] == ["unlink", "unlink", "rmdir"]


def test_a_large_checkpoint_is_deleted_while_training_continues(opened, write, monkeypatch):
    monkeypatch.setattr(checkpoint_folder, "LARGE_BYTES", 0)
    store, may_delete = opened(), threading.Event()

    def hold(operation, proceed):
        if operation.name == "unlink":
            assert may_delete.wait(30)
        return proceed()

    def hidden():
        return [name for name in os.listdir(store.workdir / "checkpoints") if name.startswith(".")]

    for step in (1, 2):
        write(store, step, last=KeepNewest(1))
    with intercepted(hold):
        assert write(store, 3, last=KeepNewest(1)).step == 3  # returns although the deletion has not finished
        assert (steps(store), len(hidden())) == ([2, 3], 1)
        may_delete.set()
        write(store, 4, last=KeepNewest(1))  # waits for it
    store.close()
    assert (steps(store), hidden()) == ([3, 4], [])


def test_nothing_is_deleted_before_the_new_checkpoint_is_read_back(opened, write, flip, caplog):
    store = opened()
    for step in (1, 2):
        write(store, step, last=KeepNewest(1))

    def corrupt(operation, proceed):
        result = proceed()
        if operation.name == "rename" and (operation.target or "").endswith("step-00000003"):
            flip(Path(operation.target) / "state.json", 3)
        return result

    with intercepted(corrupt), pytest.raises(CannotSave, match="differs from what was written") as caught:
        write(store, 3, last=KeepNewest(1))
    assert caught.value.errno == errno.EIO
    assert steps(store) == [1, 2]
    assert (store.workdir / "checkpoints" / "damaged-step-00000003").exists()


# Failures


def test_a_save_that_fails_at_any_operation_leaves_a_good_checkpoint(tmp_path, failing, write):
    state = {"parts": {"model": {"w": torch.ones(10)}}}

    def prepared(name):
        store = CheckpointStore(tmp_path / name)
        store.open("auto", {})
        for step in (1, 2):
            write(store, step, state=state, last=KeepNewest(1), best_x=KeepNewest(1))
        return store

    store = prepared("clean")
    with failing(0) as operations:
        write(store, 3, state=state, last=KeepNewest(1), best_x=KeepNewest(1))
    store.close()
    assert len(operations) > 25
    for at in range(1, len(operations) + 1):
        store = prepared(str(at))
        saved = None
        with failing(at, lasting=at % 2 == 0), contextlib.suppress(CannotSave):
            saved = write(store, 3, state=state, last=KeepNewest(1), best_x=KeepNewest(1))
        store.close()
        store = CheckpointStore(tmp_path / str(at))
        found = Path(store.open("must", {}).path)
        store.close()
        assert found.name == "step-00000003" or (saved is None and found.name == "step-00000002")
        left = sorted(os.listdir(found.parent))
        assert [name for name in left if not name.startswith(("step-", "best-x", "last"))] == [], (at, operations[at - 1])
        assert (found.parent / "best-x" / "manifest.json").read_bytes() == (found / "manifest.json").read_bytes()
        read_checkpoint(found.parent / "best-x")


def test_a_missing_checkpoints_folder_is_created_again(opened, write, names):
    store = opened()
    write(store, 1)
    shutil.rmtree(store.workdir / "checkpoints")
    write(store, 2)
    assert names() == ["last", "step-00000002"]
