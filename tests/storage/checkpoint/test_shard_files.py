from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import replace

import pytest

from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.core.checkpoint.store import Request
from hookpoint.core.errors import CannotResume, CannotSave, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint, read_manifest
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.manifest import File
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.disk._fs_calls import intercepted
from hookpoint.storage.load_weights import load_weights

torch = pytest.importorskip("torch")

SHARD = "__0_0.distcp"


@pytest.fixture
def mesh():
    """Return a mesh of this single process; its tensors are sharded nevertheless."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path)
    store.open("never", {})
    yield store
    store.close()


@pytest.fixture
def tensors(mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    found = {"a.b": torch.randn(4, 3), "short": torch.randn(2).bfloat16(), "none": torch.empty(0, 3), "one": torch.tensor(2.5)}
    return {name: distribute_tensor(one, mesh, [Shard(0)] if one.dim() else None) for name, one in found.items()}


def save(store, tensors, state):
    folder = store.stage(1)
    files = store.put_shards(folder, tensors, None)
    saved = store.write(state, step=1, elapsed=0.0, request=Request({"best-x": None}, False), staged=(folder, files))
    return saved.path


@pytest.fixture
def checkpoint(store, tensors):
    return save(store, tensors, {"parts": {"model": {name: ShardedPlaceholder(name) for name in tensors}}})


def put(folder, name, data):
    """Replace the bytes of a file, and write a matching manifest."""
    made = read_manifest(folder)
    (folder / name).write_bytes(data)
    (folder / "manifest.json").write_bytes(
        replace(made, files={**made.files, name: File(len(data), hashlib.sha256(data).hexdigest())}).encoded()
    )


def test_tensors_are_loaded_full_or_sharded(checkpoint, tensors):
    assert sorted(os.listdir(checkpoint)) == [".metadata", SHARD, "manifest.json", "state.json"]
    weights = load_weights(checkpoint)
    for name, tensor in tensors.items():
        assert type(weights[name]) is torch.Tensor
        assert torch.equal(weights[name], tensor.full_tensor())
        assert weights[name].dtype == tensor.dtype
    model = torch.nn.Module()
    model.register_buffer("short", tensors["short"])
    state = filled(
        {"parts": {"model": {"short": ShardedPlaceholder("short"), "x": ShardedPlaceholder("a.b")}}},
        checkpoint,
        {"model": model},
    )
    found = state["parts"]["model"]
    assert type(found["short"]) is type(tensors["short"])
    assert torch.equal(found["short"].full_tensor(), tensors["short"].full_tensor())
    assert type(found["x"]) is torch.Tensor
    assert load_weights(checkpoint.with_name("best-x")).keys() == weights.keys()


def test_optimizer_state_is_sharded_like_its_parameters(store, mesh):
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    one, other = (torch.nn.Parameter(distribute_tensor(torch.ones(2, wide), mesh, [Shard(wide - 2)])) for wide in (2, 3))
    kept = {name: distribute_tensor(torch.ones(2, wide), mesh, [Shard(0)]) for name, wide in (("x", 2), ("y", 3), ("z", 3))}
    fresh = torch.optim.Adam([{"params": [one]}, {"params": [other]}])
    optimizer = {
        "state": {0: {"m": ShardedPlaceholder("x")}, 1: {"m": ShardedPlaceholder("y"), "other shape": ShardedPlaceholder("x")}}
    }
    state = {"parts": {"optimizer": {"a": optimizer}}, "callbacks": {"averages": {"other": ShardedPlaceholder("z")}}}
    model = torch.nn.ParameterDict({"one": one, "other": other})
    folder = save(store, kept, state)
    found = filled(read_checkpoint(folder).state, folder, {"model": model, "optimizer": {"a": fresh}})
    of = found["parts"]["optimizer"]["a"]["state"]
    assert [type(one) for one in (of[0]["m"], of[1]["m"], found["callbacks"]["averages"]["other"])] == [DTensor] * 3
    assert [of[0]["m"].placements, of[1]["m"].placements] == [one.placements, other.placements]
    assert of[1]["other shape"] is of[0]["m"]


@pytest.mark.parametrize("name", [SHARD, ".metadata"])
def test_a_damaged_file_is_detected_before_it_is_read(checkpoint, name):
    data = bytearray((checkpoint / name).read_bytes())
    data[len(data) // 2] ^= 1
    (checkpoint / name).write_bytes(bytes(data))
    with pytest.raises(DamagedCheckpoint, match=f"{name} changed after"):
        load_weights(checkpoint)
    with pytest.raises(DamagedCheckpoint, match=f"{name} changed after"):
        filled({"x": ShardedPlaceholder("short")}, checkpoint)


class Bomb:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (self.file, "w")


def test_a_pickle_cannot_run_code_even_with_a_correct_digest(checkpoint, tmp_path):
    put(checkpoint, ".metadata", pickle.dumps(Bomb(str(tmp_path / "made"))))
    with pytest.raises(CannotResume, match=r"not allowed in \.metadata"):
        load_weights(checkpoint)
    assert not (tmp_path / "made").exists()


def named(module, name):
    """Return the opcode that looks up an object by its name."""
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def word(value):
    """Return the opcodes of a plain value."""
    return pickle.dumps(value, protocol=2)[2:-1]


def slots(**values):
    """Return the opcodes of a state that sets attributes on any object."""
    return word((None, values))


OF = "torch.distributed.checkpoint.metadata"
METADATA, INDEX, FORMAT = named(OF, "Metadata"), named(OF, "MetadataIndex"), named(OF, "_MEM_FORMAT_ENCODING")
PROPERTIES, LAYOUT = named(OF, "TensorProperties"), named("torch.serialization", "_get_layout")
ONE, NEW, CALL, BUILD = b"\x85", b")\x81", b"R", b"b"
FRESH = METADATA + NEW
HOSTILE = {
    "a class, by its slots": METADATA + slots(version="9") + BUILD,
    "a class, by its dict": METADATA + word({"version": "9"}) + BUILD,
    "a class with a __setstate__": PROPERTIES + slots(__setstate__=None) + BUILD,
    "a class of constants": FORMAT + slots(TORCH_CHANNELS_LAST=7) + BUILD,
    "a constant": FORMAT + word(0) + ONE + CALL + word({"_value_": 7}) + BUILD,
    "a function, by its dict": LAYOUT + word({"__wrapped__": 7}) + BUILD,
    "a function, by its slots": LAYOUT + slots(__defaults__=(7,)) + BUILD,
    "a type of numbers": named("torch", "float32") + slots(is_complex=7) + BUILD,
    "the class of an instance": FRESH + b"N}(" + word("__class__") + INDEX + b"u\x86" + BUILD,
    "an instance, by what it was filled with": FRESH + b"}(" + word("__setstate__") + LAYOUT + b"u" + BUILD + word("") + BUILD,
    "an instance, by a pair": FRESH + word(({}, {})) + BUILD,
    "a list": word([]) + word({"a": 1}) + BUILD,
    "inside of what is fine": FRESH + b"}(" + word("version") + METADATA + slots(version="9") + BUILD + b"u" + BUILD,
}  # fmt: skip


def listed():
    """Return all attributes of the objects that the metadata of tensors may name."""
    from torch import serialization
    from torch.distributed.checkpoint import filesystem, metadata

    layout = serialization._get_layout
    classes = [getattr(metadata, one) for one in (*metadata.__all__, "_MEM_FORMAT_ENCODING")] + [filesystem._StorageInfo]
    constants = {one.name: dict(vars(one)) for one in metadata._MEM_FORMAT_ENCODING}
    return {one.__name__: dict(vars(one)) for one in classes}, constants, dict(vars(layout)), layout.__defaults__


@pytest.mark.parametrize("what", HOSTILE)
def test_a_pickle_can_set_attributes_only_on_instances(checkpoint, what):
    before = listed()
    put(checkpoint, ".metadata", b"\x80\x02" + HOSTILE[what] + b".")
    with pytest.raises(CannotResume, match=r"not allowed in \.metadata"):
        load_weights(checkpoint)
    assert listed() == before


UNLISTED = {
    "eval": named("builtins", "eval") + word("1") + ONE + CALL,
    "getattr": named("builtins", "getattr") + METADATA + word("__init__") + b"\x86" + CALL,
    "_reconstructor": named("copyreg", "_reconstructor") + METADATA + named("builtins", "object") + b"N\x87" + CALL,
    "torch.load": named("torch", "load") + word("a") + ONE + CALL,
    "a module": named("torch", "serialization") + word({"a": 1}) + BUILD,
    "torch.serialization.load": named("torch.serialization", "load") + word("a") + ONE + CALL,
    "globals by a dotted name": word(OF) + word("Metadata.__init__.__globals__") + b"\x93",
    "a module's function by a dotted name": word(OF) + word("os.system") + b"\x93" + word("true") + ONE + CALL,
    "nested": FRESH + b"}(" + word("version") + named("os", "system") + word("true") + ONE + CALL + b"u" + BUILD,
}  # fmt: skip


@pytest.mark.parametrize("what", UNLISTED)
def test_a_pickle_can_call_only_allowed_functions(checkpoint, what):
    put(checkpoint, ".metadata", b"\x80\x04" + UNLISTED[what] + b".")
    with pytest.raises(CannotResume, match=r"not allowed in \.metadata"):
        load_weights(checkpoint)


def test_nothing_outside_the_folder_is_read(checkpoint, tmp_path):
    data = (checkpoint / ".metadata").read_bytes()
    outside = checkpoint.parent / SHARD
    outside.write_bytes((checkpoint / SHARD).read_bytes())
    there = f"../{SHARD}".encode()
    put(checkpoint, ".metadata", data.replace(bytes([len(SHARD)]) + SHARD.encode(), bytes([len(there)]) + there))
    with pytest.raises(CannotResume, match="is not one of the checkpoint's files"):
        load_weights(checkpoint)


def test_a_shard_that_differs_from_what_was_written_raises(store, tensors):
    def flip(operation, proceed):
        if operation.name == "fsync" and operation.path.endswith(SHARD):
            os.pwrite(operation.descriptor, b"?", 10)
        return proceed()

    folder = store.stage(1)
    with intercepted(flip), pytest.raises(CannotSave, match="differs from what was written"):
        store.put_shards(folder, tensors, None)
    store.unstage(folder)
    assert not folder.exists()


def test_put_shards_raises_if_the_folder_is_missing(store, tensors, tmp_path):
    with pytest.raises(CannotSave, match="all ranks must share the workdir"):
        store.put_shards(tmp_path / "elsewhere", tensors, None)


def test_encrypted_shards_need_the_key(tmp_path, tensors, monkeypatch):
    pytest.importorskip("cryptography", reason="needs the extra crypto")
    from hookpoint.storage.checkpoint import encryption

    monkeypatch.setattr(encryption, "_known", {})
    (tmp_path / "key").write_bytes(os.urandom(32))
    store = CheckpointStore(tmp_path / "run", key=encryption.load_key(tmp_path / "key"))
    store.open("never", {})
    path = save(store, tensors, {"parts": {"model": {name: ShardedPlaceholder(name) for name in tensors}}})
    store.close()
    assert all((path / name).read_bytes()[:8] == encryption.MAGIC for name in (SHARD, ".metadata", "state.json"))
    loaded = load_weights(path)
    assert all(torch.equal(loaded[name], tensors[name].full_tensor()) for name in tensors)
    encryption._known.clear()
    with pytest.raises(CannotResume, match="no key was given"):
        load_weights(path)
    encryption.load_key(tmp_path / "key")
    changed = bytearray((path / SHARD).read_bytes())
    changed[-1] ^= 1
    put(path, SHARD, changed)
    with pytest.raises(DamagedCheckpoint, match=f"{SHARD} was changed after it was encrypted"):
        load_weights(path)
