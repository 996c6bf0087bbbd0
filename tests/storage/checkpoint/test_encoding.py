from __future__ import annotations

import io
import json
import math
import random
import struct
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hookpoint.storage.checkpoint._encoding import for_json, for_torch, restored

QUIET_NAN = struct.unpack(">d", bytes.fromhex("7ff8000000000001"))[0]
NEGATIVE_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000000"))[0]

VALUES = [
    None,
    True,
    [0, 1, -1, 2**63, -(2**64), 2**64, 2**1024, -(2**4000), 10**5000],
    [0.1, -0.0, 1e-320, 1.7976931348623157e308, math.inf, -math.inf, math.nan, QUIET_NAN, NEGATIVE_NAN],
    [1j, complex(-0.0, math.nan)],
    ["", "a\x00é\u2028\ud800", "$tuple"],
    [b"", b"\x00\xff", b"a" * 300],
    [(), (1,), (1, (2, [3]))],
    {1: "int", "1": "str", 1.5: "float", None: "none", b"1": "bytes", (1, (b"", 2)): "tuple", False: "bool"},
    {b"": 1, "a": 2},
    {"$tuple": [1]},
    {"$": {"$dict": 1}},
    {"$a": 1, "$b": 2},
    {2**5000: 1},
    {"z": 1, "a": 2},
    OrderedDict([("z", 1), (2, ())]),
    OrderedDict({"$a": 1}),
    Counter("aab"),
    Counter({"$a": 2}),
    Counter({(1,): 2}),
    [set(), {1, "a", (2, b"")}, {b""}, frozenset(), frozenset({1, frozenset({2})})],
    {"betas": (0.9, 0.999), "state": {0: {"step": 3}}},
    random.Random(3).getstate(),
    [
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.array(3.5),
        np.zeros((0, 3), "i1"),
        np.array(["a", "bé"]),
        np.array([b"a"]),
        np.array([True, False]),
        np.array([1], dtype=">i8"),
        np.array([QUIET_NAN, -0.0]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::2],
    ],
]
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.binary() | st.none() | st.tuples(st.integers(), st.text()), inner)
        | st.dictionaries(st.sampled_from(["$dict", "$tuple", "$", "a"]), inner).map(OrderedDict)
        | st.sets(st.integers() | st.binary() | st.tuples(st.integers()))
    ),
    max_leaves=20,
)


def through_json(value):
    return restored(json.loads(json.dumps(for_json(value), allow_nan=False)))


def through_torch(value):
    memory = io.BytesIO()
    torch.save(for_torch(value), memory)
    memory.seek(0)
    return restored(torch.load(memory, weights_only=True))


@pytest.mark.parametrize("through", [through_json, through_torch])
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_survive_a_round_trip(value, through, same):
    assert same(through({"a": value}), {"a": value})


@pytest.mark.parametrize("through", [through_json, through_torch])
@settings(deadline=None, max_examples=3 * settings.default.max_examples)
@given(value=PLAIN)
def test_generated_trees_survive_a_round_trip(value, through, same):
    assert same(through([value]), [value])


def test_restored_arrays_are_writable():
    for through in (through_json, through_torch):
        array = through(np.zeros(2))
        array += 1
        assert array.tolist() == [1, 1]


def test_a_plain_tree_stays_readable_json():
    assert for_json({"a": [1, 2.5, "x", None, {"b": True}]}) == {"a": [1, 2.5, "x", None, {"b": True}]}
