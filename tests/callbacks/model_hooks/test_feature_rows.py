"""Rows come together in the order of the batches; what does not fit is refused at once."""

from __future__ import annotations

import pytest
import torch

from hookpoint.callbacks.model_hooks._feature_rows import FeatureRows
from hookpoint.core.errors import BadLoop


def test_rows_are_in_order_and_copied():
    rows, tensor = FeatureRows("Tap"), torch.zeros(2, 3)
    for number in range(5):
        tensor.fill_(number)
        rows.add("a", tensor[: 1 + number % 2])
        rows.keep_batch()
    tensor.fill_(9)
    assert rows.joined()["a"][:, 0].tolist() == [0, 1, 1, 2, 3, 3, 4]
    assert rows.joined() == {}


def test_a_batch_that_does_not_count_is_forgotten():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2))
    rows.drop_batch()
    rows.add("a", torch.zeros(1))
    rows.keep_batch()
    assert rows.joined()["a"].tolist() == [0]


def test_a_name_that_comes_again_is_numbered():
    rows = FeatureRows("Tap")
    for batch in range(2):
        for call in range(3):
            rows.add("a", torch.tensor([10 * batch + call]))
        rows.keep_batch()
    assert {name: one.tolist() for name, one in rows.joined().items()} == {"a": [0, 10], "a#2": [1, 11], "a#3": [2, 12]}


def test_single_numbers_are_rows():
    rows = FeatureRows("Tap")
    for number in (1.0, 2.0):
        rows.add("a", torch.tensor(number))
        rows.keep_batch()
    assert rows.joined()["a"].tolist() == [1, 2]


def test_types_are_kept():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2, dtype=torch.bfloat16))
    rows.keep_batch()
    assert rows.joined()["a"].dtype is torch.bfloat16


def test_sizes_that_differ_are_refused_at_once():
    rows = FeatureRows("Tap")
    rows.add("a", torch.ones(2, 3, 4))
    rows.keep_batch()
    with pytest.raises(BadLoop, match=r"^Tap: 'a' has shape \[5, 4\] per sample, but had \[3, 4\] before\.\n  give      pool="):
        rows.add("a", torch.ones(2, 5, 4))
