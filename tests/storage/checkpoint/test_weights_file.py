from __future__ import annotations

import io
import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file

from hookpoint.storage.checkpoint.weights_file import DTYPES, is_writable, read_weights, write_weights


class Counting(io.BytesIO):
    """An in-memory file that records the addresses of the data written to it."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def write(self, data):
        self.addresses.append(np.frombuffer(data, np.uint8).ctypes.data)
        return super().write(data)


@pytest.fixture
def through(tmp_path):
    """Write weights to a file and read them back."""

    def go(weights):
        path = tmp_path / "a.safetensors"
        with open(path, "wb") as file:
            write_weights(weights, file)
        return read_weights(path)

    return go


@pytest.fixture
def equal(same):
    """Compare two mappings bit for bit, in any order."""
    return lambda one, other: same(sorted(one.items()), sorted(other.items()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_safetensors_dtype_survives_a_round_trip(dtype, through, equal):
    raw = torch.arange(64, dtype=torch.uint8).view(8, 8)
    if dtype is torch.bool:
        raw %= 2
    weights = {"a": raw.clone().view(dtype), "b": torch.ones(3, dtype=torch.int8)}
    assert equal(through(weights), weights)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0),
        torch.empty(2, 0, 3, dtype=torch.bfloat16),
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.tensor(7).expand(2, 3),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["scalar", "empty", "empty-2d", "transposed", "strided", "expanded", "channels-last", "conj", "neg", "parameter"],
)
def test_every_layout_survives_a_round_trip(tensor, through, equal):
    first, shown = torch.ones(1), tensor.detach().resolve_conj().resolve_neg()
    assert equal(through({"first": first, "a": tensor}), {"first": first, "a": shown})


def test_safetensors_can_read_the_file(tmp_path, equal):
    weights = {"w": torch.randn(3, 2), "b": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3), "ü": torch.ones(1)}
    with open(tmp_path / "a.safetensors", "wb") as file:
        write_weights(weights, file)
    assert equal(load_file(tmp_path / "a.safetensors"), weights)


def test_tensors_stay_aligned_after_narrower_types(through, equal):
    weights = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(1, dtype=torch.float64), "c": torch.ones(1).half()}
    memory = io.BytesIO()
    write_weights(weights, memory)
    length = int.from_bytes(memory.getvalue()[:8], "little")
    header = json.loads(memory.getvalue()[8 : 8 + length])
    assert length % 8 == 0
    assert [header[name]["data_offsets"][0] % weights[name].element_size() for name in weights] == [0, 0, 0]
    assert equal(through(weights), weights)


def test_tied_weights_are_stored_once_and_stay_tied(through):
    weight = torch.randn(100, 100)
    loaded = through(OrderedDict([("embed.weight", weight), ("bias", torch.ones(2)), ("head.weight", weight.detach())]))
    assert loaded["embed.weight"].data_ptr() == loaded["head.weight"].data_ptr()
    assert torch.equal(loaded["head.weight"], weight)
    memory = io.BytesIO()
    write_weights({"embed.weight": weight, "head.weight": weight}, memory)
    assert len(memory.getvalue()) < 41_000
    assert set(load(memory.getvalue())) == {"embed.weight"}


def test_different_views_of_one_storage_are_each_stored(through, equal):
    base = torch.arange(6.0)
    weights = {"all": base, "half": base[:3], "square": base.view(2, 3), "bits": base.view(torch.int32)}
    assert equal(through(weights), weights)


def test_empty_tensors_are_not_treated_as_tied(through, equal):
    weights = {"a": torch.empty(0, 3), "b": torch.empty(0, 3), "c": torch.empty(5, 0)}
    assert equal(through(weights), weights)


def test_tensors_are_written_without_a_copy():
    weight, stream = torch.randn(1000), Counting()
    write_weights({"a": weight}, stream)
    assert weight.data_ptr() in stream.addresses


def test_loaded_weights_do_not_change_with_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        write_weights({"a": torch.ones(1000)}, file)
    loaded = read_weights(path)
    with open(path, "r+b") as file:
        file.seek(-4000, 2)
        file.write(b"\xff" * 4000)
    assert torch.equal(loaded["a"], torch.ones(1000))


@pytest.mark.parametrize(
    ("weights", "can"),
    [
        ({"a": torch.ones(1)}, True),
        ({"a": torch.ones(1, dtype=torch.complex128)}, False),
        ({"__metadata__": torch.ones(1)}, False),
        ({"\ud800": torch.ones(1)}, False),
        ({"a": torch.ones(1), "b": 1}, False),
        ({}, False),
    ],
    ids=["tensors", "unknown-type", "metadata", "no-text", "mixed", "empty"],
)
def test_is_writable_needs_valid_names_and_known_dtypes(weights, can):
    assert is_writable(weights) is can
