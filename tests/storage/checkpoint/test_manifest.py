from __future__ import annotations

import hashlib
import json

import pytest

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.manifest import File, Manifest, parse_manifest

FILES = {"state.json": File(12, "0" * 64), "model.safetensors": File(5_000_000_000, "f" * 64)}


@pytest.fixture
def manifest():
    return Manifest(
        step=1200,
        elapsed=0.1 + 0.2,
        tags=("last", "best-val/loss", "é\ud800"),
        clocks={"step": 1200, "pair": (1, 2)},
        identity={"seed": 3, "world_size": 1},
        files=FILES,
    )


def edited(data, **changes):
    """Return a manifest with changed content and a correct digest."""
    content = {**json.loads(data), **changes}
    del content["digest"]
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    content["digest"] = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def test_a_manifest_survives_a_round_trip(manifest):
    assert parse_manifest(manifest.encoded(), "it") == manifest
    assert parse_manifest(edited(manifest.encoded()), "it") == manifest


def test_a_manifest_is_readable_json(manifest):
    content = json.loads(manifest.encoded())
    assert content["step"] == 1200
    assert content["files"]["state.json"] == {"size": 12, "sha256": "0" * 64}
    assert content["format"] == 1
    assert content["kind"] == "full"
    assert "python" in content["versions"]


def test_every_changed_byte_is_detected(manifest):
    data = manifest.encoded()
    for at in range(len(data)):
        for bits in (0x01, 0x20, 0xFF):
            changed = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
            with pytest.raises(DamagedCheckpoint, match=r"^the manifest\.json of it was changed\."):
                parse_manifest(changed, "it")


def test_every_truncation_is_detected(manifest):
    data = manifest.encoded()
    for end in range(len(data)):
        with pytest.raises(DamagedCheckpoint):
            parse_manifest(data[:end], "it")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\n",
        lambda data: b" " + data,
        lambda data: data.replace(b'"step": 1200', b'"step": 1200.0', 1),
        lambda data: data.replace(b"{", b'{"step": 7,', 1),
        lambda data: json.dumps(json.loads(data)).encode(),
        lambda data: b"[]",
        lambda data: b"null",
        lambda data: b"[" * 100_000,
    ],
    ids=["more", "blank", "float", "twice", "one-line", "list", "null", "deep"],
)
def test_a_manifest_in_any_other_encoding_raises(manifest, change):
    with pytest.raises(DamagedCheckpoint):
        parse_manifest(change(manifest.encoded()), "it")


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../../x": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"a/b": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"manifest.json": {"size": 1, "sha256": "0" * 64}}},
        {"files": {"a": {"size": 1, "sha256": "0"}}},
        {"files": {"a": {"size": 1}}},
        {"files": []},
        {"step": "many"},
        {"tags": None},
        {"clocks": {"$nothing": 1}},
    ],
    ids=["up", "path", "itself", "short", "half", "list", "step", "tags", "clocks"],
)
def test_invalid_content_raises_even_with_a_correct_digest(manifest, changes):
    with pytest.raises(DamagedCheckpoint, match="is invalid"):
        parse_manifest(edited(manifest.encoded(), **changes), "it")


def test_a_manifest_of_a_later_format_is_not_reported_as_damaged(manifest):
    with pytest.raises(CannotResume, match=r"^it has format 3; this release of hookpoint reads format 1\."):
        parse_manifest(edited(manifest.encoded(), format=3), "it")


def test_the_tag_exception_marks_a_checkpoint_of_an_exception():
    made = Manifest(step=1, elapsed=0.0, tags=("exception",), clocks={}, identity={}, files={})
    assert parse_manifest(made.encoded(), "it").is_of_exception
    assert json.loads(made.encoded())["kind"] == "exception"
