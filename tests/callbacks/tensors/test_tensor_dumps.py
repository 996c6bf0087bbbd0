from __future__ import annotations

import errno
import threading
from types import SimpleNamespace

import pytest

from hookpoint.callbacks.tensors._tensor_dumps import MAX_WAITING, TensorDumps
from hookpoint.storage.disk._fs_calls import intercepted


def opened(workdir, *, resuming=False, prefix="x", is_later=lambda name: False):
    dumps = TensorDumps("Dumps", prefix)
    dumps.open(SimpleNamespace(workdir=workdir, resuming=resuming), is_later)
    return dumps


def names(workdir):
    folder = workdir / "tensor-dumps"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_files_are_written_in_order_and_replace_older_ones(tmp_path):
    dumps = opened(tmp_path)
    for number in range(20):
        dumps.put(lambda number=number: [("x-1", b"%d" % number), (f"x-2-{number}", b"")])
    dumps.wait()
    assert (tmp_path / "tensor-dumps" / "x-1").read_bytes() == b"19"
    assert len(names(tmp_path)) == 21
    dumps.close()


def test_without_files_no_folder_is_created(tmp_path):
    opened(tmp_path).close()
    assert names(tmp_path) == []
    assert not (tmp_path / "tensor-dumps").exists()


def test_the_training_thread_waits_only_if_too_many_files_are_pending(tmp_path):
    dumps = opened(tmp_path)
    go = threading.Event()

    def make():
        assert go.wait(10)
        return [("x", b"")]

    for _ in range(MAX_WAITING):
        dumps.put(make)  # would never return if it waited
    assert names(tmp_path) == []
    threading.Timer(0.05, go.set).start()
    dumps.put(make)
    assert "x" in names(tmp_path)
    dumps.close()


def test_a_full_disk_is_reported_once_and_leaves_no_partial_file(tmp_path, caplog):
    full = [True]

    def fails(operation, proceed):
        if operation.name == "write" and full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return proceed()

    dumps = opened(tmp_path)
    with intercepted(fails):
        for number in range(3):
            dumps.put(lambda number=number: [(f"x-{number}", b"content")])
            dumps.wait()
        full[0] = False
        dumps.put(lambda: [("x-3", b"content")])
        dumps.wait()
        full[0] = True
        dumps.put(lambda: [("x-4", b"content")])
        dumps.close()
    assert names(tmp_path) == ["x-3"]
    assert [message.split(":")[0] for message in caplog.messages] == ["Dumps could not write x-0", "Dumps could not write x-4"]


@pytest.mark.parametrize("at", range(12))
def test_a_failed_write_leaves_the_old_or_the_new_file(tmp_path, caplog, at):
    dumps = opened(tmp_path)
    dumps.put(lambda: [("x", b"old")])
    dumps.wait()
    seen = []

    def fails(operation, proceed):
        seen.append(operation.name)
        if len(seen) == at + 1:
            raise OSError(errno.EIO, "broken")
        return proceed()

    with intercepted(fails):
        dumps.put(lambda: [("x", b"new")])
        dumps.close()
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "tensor-dumps" / "x").read_bytes() in (b"old", b"new")


def test_other_errors_are_raised_on_the_training_thread(tmp_path):
    def make():
        raise ZeroDivisionError("mine")

    dumps = opened(tmp_path)
    dumps.put(make)
    with pytest.raises(ZeroDivisionError, match="mine"):
        dumps.wait()
    dumps.put(make)
    dumps.put(lambda: [("x", b"")])
    with pytest.raises(ZeroDivisionError):
        dumps.close()
    assert names(tmp_path) == ["x"]
    assert not [thread for thread in threading.enumerate() if "Dumps" in thread.name]
    dumps.close()


def test_a_resumed_run_removes_later_and_partial_files(tmp_path):
    folder = tmp_path / "tensor-dumps"
    folder.mkdir()
    half, others = f".staging-x-1-{'0' * 16}", f".staging-y-1-{'0' * 16}"
    for name in ("x-1", "x-2", "mine", half, others):
        (folder / name).touch()
    opened(tmp_path, is_later=lambda name: name == "x-2")
    assert names(tmp_path) == sorted([others, "mine", "x-1", "x-2"])
    opened(tmp_path, is_later=lambda name: name == "x-2", resuming=True)
    assert names(tmp_path) == sorted([others, "mine", "x-1"])


@pytest.mark.parametrize("prefix", ["", "a/b", "..", ".hidden", "a b", None, "x" * 200])
def test_an_invalid_prefix_raises(prefix):
    with pytest.raises(ValueError, match="is not a file name"):
        TensorDumps("Dumps", prefix)
