from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest

from hookpoint.core.loop import Loop


class Array:
    def __init__(self, *shape):
        self.shape = shape


class Pair(NamedTuple):
    x: object
    y: object


@dataclass
class Columns:
    x: object
    y: object = None


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (Array(8, 3), 8),
        (Array(0, 3), 0),
        (Array(), 1),
        ((Array(8, 3), Array(9)), 8),
        ([Array(8, 3), Array(9)], 8),
        ({"x": Array(8, 3), "y": Array(8)}, 8),
        (Pair(Array(8), Array(8)), 8),
        (Columns(Array(8)), 8),
        (Columns({"x": Array(8)}), 8),
        (Columns, 1),
        (({"x": [Array(8)]}, Array(8)), 8),
        (["a", "b", "c"], 3),
        ([["a", "b", "c"], [0, 1]], 3),
        ((["a", "b"], [0, 1, 0]), 2),
        ("text", 1),
        (3.5, 1),
        (None, 1),
        ([], 1),
        ((), 1),
        ({}, 1),
    ],
)
def test_a_batch_counts_as_many_samples_as_its_first_array_is_long(batch, count):
    with Loop() as run:
        for _ in run.batches([batch]):
            pass
    assert run.samples == count
