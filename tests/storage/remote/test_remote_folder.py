from __future__ import annotations

import pytest

from hookpoint.core.errors import BadArgument
from hookpoint.storage.remote.mirrored import is_log, log_files
from hookpoint.storage.remote.remote_folder import RemoteFolder, is_url


@pytest.fixture(params=["file", "memory"])
def remote(request, tmp_path):
    return RemoteFolder(f"{request.param}://{tmp_path}/mine")


def test_files_can_be_written_listed_read_and_removed(remote, tmp_path):
    assert remote.names() == []
    assert remote.sizes() == {}
    assert remote.read("a/b.txt") is remote.size("a/b.txt") is None
    remote.write("a/b.txt", b"0123456789")
    (tmp_path / "local").write_bytes(b"xyz")
    remote.upload(tmp_path / "local", "a/c/d.bin")
    assert remote.names() == ["a"]
    assert remote.names("a") == ["b.txt", "c"]
    assert remote.sizes() == {"a/b.txt": 10, "a/c/d.bin": 3}
    assert remote.sizes("a/c") == {"d.bin": 3}
    assert (remote.read("a/b.txt"), remote.read_end("a/b.txt", 4), remote.size("a/b.txt")) == (b"0123456789", b"6789", 10)
    remote.download("a/c/d.bin", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"xyz"
    for _ in range(2):
        remote.remove("a/c")
        remote.remove("a/b.txt")
    assert remote.sizes() == {}


@pytest.mark.parametrize(("name", "is_one"), [("s3://bucket/x", True), ("runs/mine", False), ("s3:x", False)])
def test_a_url_needs_a_scheme_with_slashes(name, is_one):
    assert is_url(name) is is_one


def test_an_unknown_scheme_raises():
    with pytest.raises(
        BadArgument, match=r"fsspec cannot use foo://bucket/x: Protocol not known: foo\.\n.*s3://bucket/runs/mine"
    ):
        RemoteFolder("foo://bucket/x")


def test_credentials_in_a_url_are_masked():
    assert RemoteFolder("memory://user:hunter22@host/x").url == "memory://***@host/x"


def test_log_files_exclude_checkpoints_and_earlier_runs(tmp_path):
    names = ("run.json", "scalars.jsonl", "tensorboard/events.1", ".lock", ".control/journal.jsonl", ".control/live.json")
    others = ("checkpoints/step-00000001/state.pt", "previous/001/run.json", "a/previous/kept", "mirror.json", "a/.hidden")
    for name in (*names, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("run.json")
    found = sorted(log_files(tmp_path))
    assert found == [".control/journal.jsonl", "a/previous/kept", "run.json", "scalars.jsonl", "tensorboard/events.1"]
    assert [name for name in sorted((*names, *others)) if is_log(name)] == found
