from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hookpoint.storage.disk import disk
from hookpoint.storage.disk._fs_calls import intercepted
from hookpoint.storage.disk.hashing_writer import NewFile


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def operations():
    """Return the elementary operations of a function, with the names of their files."""

    def go(work):
        seen = []

        def by(operation, proceed):
            seen.append(f"{operation.name} {os.path.basename(operation.path)}")
            return proceed()

        with intercepted(by):
            work()
        return seen

    return go


def test_a_file_is_hashed_while_it_is_written(tmp_path):
    data = os.urandom(3_000_000)
    with NewFile(tmp_path / "a") as file:
        for start in (0, 10, 5000):
            file.write(memoryview(data)[start : {0: 10, 10: 5000, 5000: None}[start]])
    assert (tmp_path / "a").read_bytes() == data == disk.read(tmp_path / "a")
    assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert disk.digest(tmp_path / "a") == file.sha256


def test_interceptors_see_each_operation_of_a_write(tmp_path, operations):
    assert operations(lambda: disk.write(tmp_path / "a", b"x")) == ["create a", "write a", "fsync a"]
    assert operations(lambda: disk.sync_folder(tmp_path)) == [f"open {tmp_path.name}", f"fsync {tmp_path.name}"]


def test_a_short_write_continues_where_it_ended(tmp_path):
    def by(operation, proceed):
        if operation.name == "write":
            return os.write(operation.descriptor, operation.data[:7])
        return proceed()

    with intercepted(by):
        disk.write(tmp_path / "a", b"0123456789" * 5)
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 5


def test_a_failed_write_raises_at_the_end_and_drops_the_rest(tmp_path, failing):
    with (
        failing(2, select=lambda operation: operation.name == "write") as seen,
        pytest.raises(OSError, match="No space left") as caught,
        NewFile(tmp_path / "a") as file,
    ):
        for _ in range(4):
            assert file.write(b"x" * 2_000_000) == 2_000_000
    assert caught.value.errno == errno.ENOSPC
    assert len(seen) == 2


def test_an_error_in_the_block_propagates_and_nothing_is_synced(tmp_path, operations):
    def work():
        with pytest.raises(ValueError, match="mine"), NewFile(tmp_path / "a"):
            raise ValueError("mine")

    assert operations(work) == ["create a"]


def test_only_the_owner_can_access_new_files_and_folders(tmp_path):
    disk.make_folder(tmp_path / "a" / "b")
    disk.write(tmp_path / "a" / "b" / "c", b"")
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    assert mode(tmp_path / "a" / "b" / "c") == 0o600


def test_threads_that_create_the_same_folder_at_once_all_succeed(tmp_path):
    for number in range(50):
        start = threading.Barrier(4)

        def create(path=tmp_path / str(number) / "inner", start=start):
            start.wait()
            disk.make_folder(path)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(create) for _ in range(4)]:
                done.result()
        assert (tmp_path / str(number) / "inner").is_dir()


def test_make_folder_syncs_the_parent_of_each_new_folder(tmp_path, operations):
    changes = [one for one in operations(lambda: disk.make_folder(tmp_path / "a" / "b")) if one.startswith(("mkdir", "fsync"))]
    assert changes == ["mkdir a", f"fsync {tmp_path.name}", "mkdir b", "fsync a"]
    assert [one for one in operations(lambda: disk.make_folder(tmp_path / "a" / "b")) if not one.startswith("stat")] == []


@pytest.mark.parametrize("there", ["file", "folder", "symlink", "dangling"])
def test_write_never_overwrites(there, tmp_path):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "a"
    if there == "file":
        path.write_bytes(b"old")
    elif there == "folder":
        path.mkdir()
    else:
        path.symlink_to(elsewhere)
    if there == "symlink":
        elsewhere.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        disk.write(path, b"new")
    assert not elsewhere.exists() or elsewhere.read_bytes() == b"old"


@pytest.mark.parametrize("there", ["file", "empty-folder", "dangling"])
def test_rename_never_overwrites(there, tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir() if there == "empty-folder" else source.write_bytes(b"new")
    if there == "file":
        target.write_bytes(b"old")
    elif there == "empty-folder":
        target.mkdir()
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        disk.rename(source, target)
    assert source.exists()


def test_a_link_is_the_same_file(tmp_path):
    disk.write(tmp_path / "a", b"x")
    disk.link(tmp_path / "a", tmp_path / "b")
    assert disk.is_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOTSUP, errno.EXDEV], ids=errno.errorcode.get)
def test_link_copies_the_file_if_hard_links_are_not_supported(error, tmp_path, failing):
    data, names = os.urandom(100_000), []
    disk.write(tmp_path / "a", data)
    with failing(1, error, select=lambda operation: names.append(operation.name) or operation.name == "link"):
        disk.link(tmp_path / "a", tmp_path / "b")
    assert names[-1] == "fsync"
    assert (tmp_path / "b").read_bytes() == data
    assert not disk.is_same(tmp_path / "a", tmp_path / "b")


def test_link_raises_on_other_errors(tmp_path, failing):
    disk.write(tmp_path / "a", b"x")
    with failing(1, select=lambda operation: operation.name == "link"), pytest.raises(OSError, match="No space left"):
        disk.link(tmp_path / "a", tmp_path / "b")


def test_a_symbolic_link_is_replaced_in_one_step(tmp_path, operations):
    disk.point(tmp_path / "last", "one")
    assert [one.split()[0] for one in operations(lambda: disk.point(tmp_path / "last", "two"))] == [
        "stat",
        "symlink",
        "replace",
    ]
    assert os.readlink(tmp_path / "last") == "two"
    assert os.listdir(tmp_path) == ["last"]


def test_remove_does_not_follow_symbolic_links(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_bytes(b"x")
    doomed = tmp_path / "doomed"
    (doomed / "deep").mkdir(parents=True)
    (doomed / "deep" / "link").symlink_to(kept)
    (doomed / "file").write_bytes(b"x")
    disk.remove(doomed)
    assert not doomed.exists()
    assert (kept / "file").exists()


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP], ids=errno.errorcode.get)
def test_file_systems_that_cannot_sync_folders_are_accepted(error, tmp_path, failing):
    with failing(1, error, select=lambda operation: operation.name == "fsync"):
        disk.sync_folder(tmp_path)


def test_a_failed_folder_sync_raises(tmp_path, failing):
    with (
        failing(1, errno.EIO, select=lambda operation: operation.name == "fsync"),
        pytest.raises(OSError, match="Input/output"),
    ):
        disk.sync_folder(tmp_path)


def test_interceptors_see_written_data_until_their_block_ends(tmp_path):
    seen = []

    def by(operation, proceed):
        seen.append((operation.name, operation.target, None if operation.data is None else bytes(operation.data)))
        return proceed()

    with intercepted(by):
        disk.write(tmp_path / "a", b"x")
        disk.rename(tmp_path / "a", tmp_path / "b")
    disk.write(tmp_path / "c", b"x")
    assert [one for one in seen if one[0] in ("write", "rename")] == [
        ("write", None, b"x"),
        ("rename", str(tmp_path / "b"), None),
    ]


def test_free_bytes_accepts_a_path_that_does_not_exist(tmp_path):
    assert disk.free_bytes(tmp_path / "not" / "there") > 0
