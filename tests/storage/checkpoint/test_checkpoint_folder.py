from __future__ import annotations

import errno
import os
import shutil
import stat

import pytest
import torch

from hookpoint.core.errors import CannotSave, DamagedCheckpoint
from hookpoint.storage.checkpoint import checkpoint_folder
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint, strays, verified, verify_written, write_checkpoint
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import hashing_writer
from hookpoint.storage.disk._fs_calls import intercepted

STATE = {
    "clocks": {"step": 7},
    "parts": {"model": {"w": torch.arange(300.0), "b": torch.ones(3).bfloat16()}, "optimizer": {0: {"m": torch.ones(50)}}},
}
FILES = ["manifest.json", "model.safetensors", "state.pt"]


def describe(files):
    return Manifest(step=7, elapsed=1.5, tags=("mine",), clocks={}, identity={}, files=files)


@pytest.fixture
def folder(tmp_path):
    """Write a checkpoint and return its folder."""
    path = tmp_path / "step-00000007"
    write_checkpoint(path, STATE, describe)
    return path


def test_a_checkpoint_is_read_back_unchanged(folder, same):
    found = read_checkpoint(folder)
    assert found.path == folder
    assert same(found.state, STATE)
    assert sorted(os.listdir(folder)) == FILES
    assert os.listdir(folder.parent) == [folder.name]


def test_only_the_owner_can_access_the_folder_and_its_files(folder):
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in FILES} == {0o600}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("where", [0, 1, 0.1, 0.3, 0.5, 0.8, 0.99, -1])
def test_a_flipped_byte_is_detected(file, where, folder, flip):
    at = int(where * (folder / file).stat().st_size) if isinstance(where, float) else where
    flip(folder / file, at)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kept", [0, 1, 0.25, 0.5, 0.9, -1])
def test_a_truncated_file_is_detected(file, kept, folder):
    size = (folder / file).stat().st_size
    os.truncate(folder / file, int(kept * size) if isinstance(kept, float) else kept % size)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_detected(file, folder):
    (folder / file).unlink()
    with pytest.raises(DamagedCheckpoint, match=rf"^{folder} is damaged: (it has no {file}|{file} is missing)\."):
        read_checkpoint(folder)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("by", ["symlink", "folder", "pipe"])
def test_a_link_folder_or_pipe_in_place_of_a_file_is_detected(file, by, folder, tmp_path):
    path = folder / file
    path.rename(tmp_path / file)
    if by == "symlink":
        path.symlink_to(tmp_path / file)
    elif by == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(folder)


def test_extra_files_are_reported_but_are_not_damage(folder):
    before = read_checkpoint(folder).state
    for name in ("extra.bin", "state.pkl", "weights\x1b[2J", "z"):
        (folder / name).write_bytes(b"x")
    (folder / "a folder").mkdir()
    assert strays(folder, verified(folder)) == (
        "some files are ignored, because its manifest.json does not list them: 'a folder', 'extra.bin', 'state.pkl', …"
    )
    assert read_checkpoint(folder).state.keys() == before.keys()


def test_an_extra_file_does_not_hide_damage(folder, flip):
    (folder / "extra.bin").write_bytes(b"")
    flip(folder / "model.safetensors", -1)
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors changed after it was written"):
        verified(folder)


def test_a_ds_store_file_is_not_damage(folder):
    (folder / ".DS_Store").write_bytes(b"x")
    verified(folder)


def test_a_checkpoint_under_the_name_of_another_step_is_damaged(folder):
    shutil.copytree(folder, folder.with_name("step-00000009"))
    with pytest.raises(DamagedCheckpoint, match=r"step-00000009 is damaged: its manifest belongs to step 7\."):
        read_checkpoint(folder.with_name("step-00000009"))


def test_no_file_is_loaded_before_all_files_are_verified(folder, flip, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("looked into")

    monkeypatch.setattr(torch, "load", refuse)
    flip(folder / "model.safetensors", -1)
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors changed after it was written"):
        read_checkpoint(folder)


def test_an_io_error_is_damage_and_a_permission_error_is_not(folder, failing):
    with failing(3, errno.EIO, select=lambda operation: operation.name == "read"), pytest.raises(DamagedCheckpoint):
        verified(folder)
    with failing(1, errno.EACCES, select=lambda operation: operation.name == "open"), pytest.raises(PermissionError):
        verified(folder)


def test_every_file_is_synced_before_the_folder_gets_its_name(tmp_path, failing):
    target = tmp_path / "step-00000007"
    with failing(0) as seen:
        write_checkpoint(target, STATE, describe)
    (staging,) = {os.path.dirname(path) for name, path in seen if name == "create"}
    assert [(name, os.path.relpath(path, tmp_path).replace(os.path.basename(staging), "S")) for name, path in seen] == [
        ("mkdir", "S"),
        ("create", "S/model.safetensors"),
        ("write", "S/model.safetensors"),
        ("fsync", "S/model.safetensors"),
        ("create", "S/state.pt"),
        ("write", "S/state.pt"),
        ("fsync", "S/state.pt"),
        ("create", "S/manifest.json"),
        ("write", "S/manifest.json"),
        ("fsync", "S/manifest.json"),
        ("fsync", "S"),
        ("rename", "S"),
        ("fsync", "."),
    ]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
def test_a_failed_operation_leaves_a_complete_checkpoint_or_none(error, lasting, tmp_path, failing, same):
    with failing(0) as steps:
        write_checkpoint(tmp_path / "step-00000007", STATE, describe)
    assert len(steps) > 10
    for at in range(1, len(steps) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        target = folder / "step-00000007"
        with failing(at, error, lasting=lasting), pytest.raises(CannotSave, match=str(target)) as caught:
            write_checkpoint(target, STATE, describe)
        assert caught.value.errno == error
        if target.exists():
            assert same(read_checkpoint(target).state, STATE)
        left = [name for name in os.listdir(folder) if name != target.name]
        assert left == [] or lasting
        assert all(name.startswith(".staging-") for name in left)


def test_the_error_for_a_full_disk_says_how_much_is_free(tmp_path, failing):
    with failing(3), pytest.raises(CannotSave) as caught:
        write_checkpoint(tmp_path / "step-00000007", STATE, describe)
    first, second, third = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/step-00000007 could not be written: No space left on device (")
    assert second.startswith("  make      room on this disk (")
    assert second.endswith(" MiB are free)")
    assert third == "  run       hookpoint clean RUN to delete the run's old checkpoints"
    assert isinstance(caught.value, OSError)


def test_an_existing_checkpoint_is_never_overwritten(folder, same):
    with pytest.raises(CannotSave, match="File exists"):
        write_checkpoint(folder, {"other": 1}, describe)
    assert same(read_checkpoint(folder).state, STATE)
    assert os.listdir(folder.parent) == [folder.name]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def by(operation, proceed):
        if operation.name == "write" and operation.path.endswith("state.pt"):
            raise KeyboardInterrupt
        return proceed()

    large = {
        "a": torch.ones(1_000_000),
        "b": torch.ones(1_000_000),
    }  # large enough to interrupt torch in the middle of the file
    with intercepted(by), pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "step-00000007", large, describe)
    assert os.listdir(tmp_path) == []


# Large states


@pytest.fixture
def large(monkeypatch):
    """Treat every state as large: files are written in parallel, and hashed while they are written."""
    monkeypatch.setattr(checkpoint_folder, "LARGE_BYTES", 0)
    monkeypatch.setattr(hashing_writer, "LARGE_BYTES", 0)


def test_files_written_in_parallel_are_identical(folder, tmp_path, large):
    write_checkpoint(tmp_path / "parallel", STATE, describe)
    assert [(tmp_path / "parallel" / name).read_bytes() for name in FILES] == [(folder / name).read_bytes() for name in FILES]


def test_verify_written_detects_a_change_in_every_segment(tmp_path, large, monkeypatch, flip):
    monkeypatch.setattr(hashing_writer, "SEGMENT_BYTES", 1 << 16)
    monkeypatch.setattr(hashing_writer, "PIECE_BYTES", 1 << 16)
    folder, state = tmp_path / "step-00000007", {"parts": {"model": {"w": torch.arange(100_000)}}, "x": torch.ones(50_000)}
    manifest, segments = write_checkpoint(folder, state, describe)
    assert {name: sum(one.size for one in found) for name, found in segments.items()} == {
        name: file.size for name, file in manifest.files.items()
    }
    assert all(len(found) > 2 for found in segments.values())
    assert {name: found[-1].sha256 for name, found in segments.items()} == {
        name: file.sha256 for name, file in manifest.files.items()
    }
    verify_written(folder, segments)
    for name, found in segments.items():
        for segment in found:
            for place in (segment.start, segment.start + segment.size - 1):
                flip(folder / name, place)
                with pytest.raises(DamagedCheckpoint, match=f"{name} changed after it was written"):
                    verify_written(folder, segments)
                flip(folder / name, place)
    verify_written(folder, segments)


def test_a_large_file_that_cannot_be_written_leaves_nothing(tmp_path, large):
    def full(operation, proceed):
        if operation.name == "write" and operation.path.endswith("state.pt"):
            raise OSError(errno.ENOSPC, "No space left on device", operation.path)
        return proceed()

    with intercepted(full), pytest.raises(CannotSave, match="No space left on device"):
        write_checkpoint(tmp_path / "step-00000007", STATE, describe)
    assert os.listdir(tmp_path) == []


def test_partial_writes_are_hashed_correctly(tmp_path, large, same):
    def partly(operation, proceed):
        if operation.name == "write" and len(operation.data) > 100:
            return os.write(operation.descriptor, operation.data[:100])
        return proceed()

    with intercepted(partly):
        write_checkpoint(tmp_path / "step-00000007", STATE, describe)
    assert same(read_checkpoint(tmp_path / "step-00000007").state, STATE)


@pytest.mark.parametrize("file", FILES[1:])
def test_a_flipped_byte_in_a_large_file_is_detected(file, folder, flip, large):
    flip(folder / file, -1)
    with pytest.raises(DamagedCheckpoint, match=file):
        verified(folder)
