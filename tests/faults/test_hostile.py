"""Malicious checkpoints are rejected, and none of their code runs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import posix
import struct
import subprocess
import zipfile
from itertools import product
from pathlib import Path

import pytest
import torch
from scale import chosen

from hookpoint.core.errors import HookpointError
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.load_weights import load_weights
from hookpoint.storage.verify import verify

NAME = "step-00000004"


class Calls:
    """An object that makes an unpickler call a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def gadgets(marker):
    """Return objects by name that create a file when they are unpickled."""
    make, command = f"open({str(marker)!r}, 'w').close()", f"touch {marker}"
    inner = pickle.dumps(Calls(os.system, command))
    return {
        "system": Calls(os.system, command),
        "posix": Calls(posix.system, command),
        "exec": Calls(exec, make),
        "eval": Calls(eval, make),
        "mkdir": Calls(os.mkdir, str(marker)),
        "popen": Calls(subprocess.check_output, ["touch", str(marker)]),
        "getattr": Calls(getattr(Path(marker), "touch")),  # noqa: B009 - a bound method is pickled as a getattr
        "loads": Calls(pickle.loads, inner),
        "storage": Calls(torch.storage._load_from_bytes, inner),
    }


PLACES = {
    "whole": lambda gadget: gadget,
    "state": lambda gadget: {"state": {"clocks": gadget}, "weights": []},
    "weights": lambda gadget: {"state": {"clocks": {}}, "weights": [gadget]},
    "metadata": lambda gadget: {
        "state": {},
        "weights": [{"names": (), "file": "x", "kind": "dict", "keys": [], "metadata": gadget}],
    },
}


def zipped(content, protocol):
    """Return a file in the format of torch.save."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(content, protocol))
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
    return stream.getvalue()


def legacy(content, protocol):
    """Return a file in the legacy format of torch.save."""
    parts = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, content, []]
    return b"".join(pickle.dumps(part, protocol) for part in parts)


FORMATS = {"zipped": zipped, "legacy": legacy, "plain": pickle.dumps}
CASES = list(product(gadgets(Path("/")), PLACES, FORMATS, (2, 4)))


def canonical(content):
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def craft(workdir, files, changes=None):
    """Make a checkpoint of these files with a valid manifest, except for the given changes."""
    folder = workdir / "checkpoints" / NAME
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    known = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    content = {
        "format": 1,
        "step": 4,
        "elapsed": 1.0,
        "tags": ["model"],
        "kind": "full",
        "clocks": {},
        "identity": {},
        "versions": {},
        "created": "2025-01-01T00:00:00+00:00",
        "files": known,
    } | (changes or {})
    digest = hashlib.sha256(canonical(content)).hexdigest()
    (folder / "manifest.json").write_bytes(canonical({**content, "digest": digest}))
    return folder


def refused(workdir):
    """Check that every way to read the checkpoint raises; return the number of ways."""
    folder = workdir / "checkpoints" / NAME
    ways = [
        lambda: CheckpointStore(workdir).open("auto", {}),
        lambda: CheckpointStore(workdir).open("must", {}),
        lambda: CheckpointStore(workdir).open(folder, {}),
        lambda: read_checkpoint(folder),
        lambda: load_weights(folder),
    ]
    count = 0
    verify(workdir)
    for way in ways:
        with pytest.raises(HookpointError):
            way()
        count += 1
    return count


@pytest.mark.parametrize(("gadget", "where", "written", "protocol"), chosen(CASES, 12), ids=str)
def test_code_in_a_state_file_is_not_run(gadget, where, written, protocol, tmp_path, tally):
    marker = tmp_path / "ran"
    craft(tmp_path / "run", {"state.pt": FORMATS[written](PLACES[where](gadgets(marker)[gadget]), protocol)})
    ways = refused(tmp_path / "run")
    assert not marker.exists()
    tally("code in a checkpoint", files=1, reads=ways, ran=0)


@pytest.mark.parametrize("name", gadgets(Path("/")))
def test_the_code_runs_in_an_ordinary_unpickler(name, tmp_path):
    marker = tmp_path / "ran"
    try:
        pickle.loads(pickle.dumps(gadgets(marker)[name]))
    except (pickle.UnpicklingError, RuntimeError):
        assert name == "storage"  # it keeps reading after the call
    assert marker.exists()


STRANGE = {
    "path outside": {"files": {"../../../secret": {"size": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}}},
    "absolute path": {"files": {"/etc/passwd": {"size": 1, "sha256": "0" * 64}}},
    "path inside": {"files": {"a/b": {"size": 1, "sha256": "0" * 64}}},
    "files are a list": {"files": ["state.pt"]},
    "no such file": {"files": {"state.pt": {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}},
    "size is text": {"files": {"state.json": {"size": "two", "sha256": "0" * 64}}},
    "negative size": {"files": {"state.json": {"size": -1, "sha256": "0" * 64}}},
    "digest is a list": {"files": {"state.json": {"size": 2, "sha256": []}}},
    "step is text": {"step": "four"},
    "step of another": {"step": 5},
    "step is huge": {"step": 10**300},
    "elapsed is huge": {"elapsed": 10**400},
    "tags are a number": {"tags": 3},
    "versions are a list": {"versions": [1]},
    "clocks are a float of one byte": {"clocks": {"$float": "00"}},
    "clocks are half a complex number": {"clocks": {"$complex": [1]}},
    "clocks are an array of objects": {"clocks": {"$ndarray": ["O", [1], "AAAAAAAAAAA="]}},
    "clocks are an array of nothing": {"clocks": {"$ndarray": 1}},
    "clocks are a huge array": {"clocks": {"$ndarray": ["<f8", [2**60], "AAAA"]}},
    "clocks are of no type": {"clocks": {"$object": ["os.system", "true"]}},
    "clocks are a set of lists": {"clocks": {"$set": [[1]]}},
    "another format": {"format": 3},
}


@pytest.mark.parametrize("strange", STRANGE)
def test_an_invalid_manifest_is_rejected(strange, tmp_path, tally):
    (tmp_path / "secret").write_text("secret")
    craft(tmp_path / "run", {"state.json": b'{"state": {}, "weights": []}'}, STRANGE[strange])
    ways = refused(tmp_path / "run")
    tally("strange manifest", files=1, reads=ways, accepted=0)


def nested(depth):
    return b'{"state": ' + b"[" * depth + b"]" * depth + b', "weights": []}'


WEIGHTS = {"names": [], "file": "model.safetensors", "kind": "dict", "keys": ["w"], "metadata": None}
STATES = {
    "no JSON": b"{",
    "a list": b"[]",
    "nothing": b"",
    "deep": nested(100_000),
    "an array of objects": b'{"state": {"$ndarray": ["O", [1], "AAAAAAAAAAA="]}, "weights": []}',
    "weights of a file outside": json.dumps({"state": {}, "weights": [{**WEIGHTS, "file": "../../secret"}]}).encode(),
    "weights of no kind": json.dumps({"state": {"parts": {}}, "weights": [{**WEIGHTS, "kind": "system"}]}).encode(),
    "weights for nobody": json.dumps({"state": {"parts": {}}, "weights": [{**WEIGHTS, "names": ["a", "b"]}]}).encode(),
}


@pytest.mark.parametrize("strange", STATES)
def test_an_invalid_state_is_rejected(strange, tmp_path, tally):
    craft(tmp_path / "run", {"state.json": STATES[strange]})
    ways = refused(tmp_path / "run")
    tally("strange state", files=1, reads=ways, accepted=0)


HEADERS = {
    "empty": b"",
    "longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "no JSON": struct.pack("<Q", 2) + b"[}",
    "offsets outside": b'{"w":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
    "an alias of nothing": b'{"__metadata__":{"hookpoint.aliases":"{\\"a\\":\\"b\\"}"}}',
}


@pytest.mark.parametrize("strange", HEADERS)
def test_invalid_weights_are_rejected(strange, tmp_path, tally):
    data = HEADERS[strange]
    data = struct.pack("<Q", len(data)) + data if data.startswith(b"{") else data
    state = json.dumps({"state": {"parts": {"model": None}}, "weights": [WEIGHTS]}).encode()
    craft(tmp_path / "run", {"state.json": state, "model.safetensors": data})
    ways = refused(tmp_path / "run")
    tally("strange weights", files=1, reads=ways, accepted=0)


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["state.json", "manifest.json"])
def test_links_pipes_and_folders_in_place_of_files_are_rejected(name, what, tmp_path, tally):
    folder = craft(tmp_path / "run", {"state.json": b'{"state": {}, "weights": []}'})
    data = (folder / name).read_bytes()
    (folder / name).unlink()
    if what == "link":  # to a file with valid contents
        (tmp_path / "elsewhere").write_bytes(data)
        (folder / name).symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    ways = refused(tmp_path / "run")
    tally("no file", files=1, reads=ways, accepted=0)
