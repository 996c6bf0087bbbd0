from __future__ import annotations

import enum
import sys
from collections import Counter, OrderedDict, defaultdict, namedtuple
from types import ModuleType

import numpy as np
import pytest
import torch

from hookpoint.core.errors import NotSaveable
from hookpoint.storage.checkpoint.tree import copied, has_tensors, is_flat, tensors_in


class Foo:
    pass


class Keeper:
    def state_dict(self):
        return {}


class Color(enum.IntEnum):
    RED = 1


class MyDict(dict):
    pass


Pair = namedtuple("Pair", "a b")


def test_a_copy_shares_no_container_with_the_original(same):
    state = {"a": [1, {"b": (2, [3])}], "c": OrderedDict(d={4}), "e": Counter("ff")}
    copy = copied(state)
    assert same(copy, state)
    state["a"][1]["b"][1].append(9)
    state["c"]["d"].add(9)
    state["e"]["f"] = 9
    assert copy == {"a": [1, {"b": (2, [3])}], "c": OrderedDict(d={4}), "e": Counter("ff")}


@pytest.mark.parametrize(
    ("scalar", "plain"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.complex128(1j), 1j),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numpy_scalars_become_plain_values_and_keys(scalar, plain, same):
    assert same(copied({"a": [scalar], scalar: 1}), {"a": [plain], plain: 1})


@pytest.mark.parametrize(
    ("value", "a"),
    [
        (Foo(), "a Foo"),
        (Foo, "a type"),
        (len, "a builtin_function_or_method"),
        (Pair(1, 2), "a Pair"),
        (Color.RED, "a Color"),
        (MyDict(), "a MyDict"),
        (defaultdict(int), "a defaultdict"),
        (bytearray(b"a"), "a bytearray"),
        (range(3), "a range"),
        (torch.Size([1]), "a Size"),
        (np.ma.masked_array([1]), "a MaskedArray"),
        (np.longdouble(1), "a longdouble"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_types_raise_and_name_their_path(value, a):
    with pytest.raises(NotSaveable) as caught:
        copied({"callbacks": {"Mine": {"state": {"model": [1, value]}}}})
    assert str(caught.value).splitlines()[0] == (
        f"callbacks['Mine']['state']['model'][1] is {a}; checkpoints store plain types and tensors only."
    )
    assert isinstance(caught.value, TypeError)


def test_an_object_with_a_state_dict_raises_and_suggests_saving_it():
    with pytest.raises(NotSaveable) as caught:
        copied({"parts": {"mine": Keeper()}})
    assert str(caught.value) == (
        "parts['mine'] is a Keeper; checkpoints store plain types and tensors only.\n  keep      its state_dict() instead"
    )


def test_an_unsupported_key_raises():
    with pytest.raises(NotSaveable, match=r"^a key in callbacks\['Mine'\] is a Color: .*; checkpoints store plain keys only\."):
        copied({"callbacks": {"Mine": {(1, Color.RED): 2}}})


@pytest.mark.parametrize(
    ("tensor", "odd"),
    [(torch.ones(2, 2).to_sparse(), "sparse"), (torch.ones(2, device="meta"), "meta")],
    ids=["sparse", "meta"],
)
def test_sparse_and_meta_tensors_raise(tensor, odd):
    with pytest.raises(NotSaveable, match=rf"^parts\['a'\] is a {odd} tensor; checkpoints store dense tensors only\."):
        copied({"parts": {"a": tensor}})


def test_a_tensor_subclass_raises():
    class Mine(torch.Tensor):
        pass

    with pytest.raises(NotSaveable, match=r"^a is a Mine; "):
        copied({"a": torch.ones(2).as_subclass(Mine)})


@pytest.mark.parametrize("dtype", [object, [("a", "f4")]], ids=["objects", "fields"])
def test_object_and_structured_arrays_raise(dtype):
    with pytest.raises(NotSaveable, match=r"^a is an array of .*; checkpoints store arrays of numbers and text only\."):
        copied({"a": np.zeros(2, dtype)})


def test_a_state_that_contains_itself_raises():
    state = {"a": []}
    state["a"].append(state)
    with pytest.raises(NotSaveable, match=r"^a\[0\]\['a'\]\[0\].* is nested too deeply, or contains itself\."):
        copied(state)


def test_a_state_dict_keeps_the_versions_of_its_layers():
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert copied({"a": state})["a"]._metadata == state._metadata


def test_only_a_state_dict_of_tensors_is_flat():
    assert is_flat(torch.nn.Linear(1, 1).state_dict())
    assert not is_flat({})
    assert not is_flat({"a": torch.ones(1), "b": 1})
    assert not is_flat({1: torch.ones(1)})


def test_has_tensors_finds_nested_tensors():
    assert has_tensors({"a": [(1, {"b": torch.ones(1)})]})
    assert not has_tensors({"a": [(1, {"b": np.ones(1)})]})


def test_a_partially_imported_torch_has_no_tensors(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert not has_tensors({"a": [1.0]})
    assert tensors_in({"a": [1.0]}) == []
