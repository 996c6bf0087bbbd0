from __future__ import annotations

import re

import numpy as np
import pytest

from hookpoint.core.data.array_batches import as_batches, check_data
from hookpoint.core.errors import BadLoop


@pytest.mark.parametrize("data", [[1, 2], range(3), "ab", iter([1]), {"a": 1}])
def test_data_that_yields_batches_is_returned_unchanged(data):
    assert as_batches(data, None) is data


def test_a_single_array_raises_unless_batch_size_is_none():
    rows = np.ones((3, 2))
    assert as_batches(rows, None) is rows
    for batch_size in ("auto", 2):
        with pytest.raises(BadLoop) as caught:
            as_batches(rows, batch_size)
        assert str(caught.value) == (
            "data is a single ndarray, whose rows would be used as batches.\n"
            "  give      the arrays as a tuple: fit((X, Y), epochs=..., batch_size=32)\n"
            "  write     batch_size=None if its rows are batches"
        )


def test_a_dataset_without_a_pytorch_model_raises():
    with pytest.raises(BadLoop, match="cannot build batches from a range without a PyTorch model"):
        as_batches(range(3), 2)


@pytest.mark.parametrize(("rows", "sizes"), [(7, [3, 3, 1]), (6, [3, 3]), (2, [2]), (0, [])])
def test_a_tuple_of_arrays_is_split_into_batches_in_order(rows, sizes):
    x, y = np.arange(2 * rows).reshape(rows, 2), np.arange(rows)
    batches = as_batches((x, y), 3)
    for _ in range(2):  # the batches can be iterated more than once
        found = list(batches)
        assert [len(batch[1]) for batch in found] == sizes
        assert len(batches) == len(sizes)
        if sizes:
            assert np.array_equal(np.concatenate([batch[0] for batch in found]), x)
            assert np.array_equal(np.concatenate([batch[1] for batch in found]), y)


@pytest.mark.parametrize(
    ("data", "batch_size", "message"),
    [
        ((np.ones(2),), None, "a tuple of tensors or arrays needs a batch size.\n  give      batch_size=32"),
        ((np.ones(2), np.ones(3)), 1, "the tensors of a dataset must have equal lengths.\n  got       2, 3"),
        ((np.ones(2),), 0, "batch_size must be an integer >= 1, got 0."),
        ((np.ones(2),), True, "batch_size must be an integer >= 1, got True."),
        ((np.ones(2),), 2.0, "batch_size must be an integer >= 1, got 2.0."),
        (
            [np.ones(2), np.ones(2)],
            2,
            (
                "the items of a list are used as batches, so batch_size does not apply.\n"
                "  write     the arrays as a tuple: fit((X, Y), epochs=..., batch_size=32)\n"
                "  drop      batch_size if the items are batches"
            ),
        ),
        (
            [1],
            2,
            (
                "the items of a list are used as batches, so batch_size does not apply.\n"
                "  write     torch.utils.data.DataLoader(data, batch_size=32) if the items are samples\n"
                "  drop      batch_size if the items are batches"
            ),
        ),
        (
            iter([1]),
            2,
            "batch_size applies to a tuple of tensors or a dataset; a loader has its own.\n  drop      batch_size",
        ),
        (
            {"x": np.ones(2)},
            "auto",
            (
                "data is a dict, whose keys would be used as batches.\n"
                "  give      a DataLoader, a list of batches, or a tuple of tensors and batch_size=32"
            ),
        ),
        (
            "data/",
            2,
            ("data is a string.\n  give      a DataLoader, a list of batches, or a tuple of tensors and batch_size=32"),
        ),
        (3, None, "3 yields no batches.\n  give      a DataLoader, an iterable of batches, or a tuple of tensors"),
        (
            (np.ones(2), [1, 2]),
            1,
            "expected a tuple of tensors or arrays, got list.\n  give      batches as a list, an iterable or a DataLoader",
        ),
    ],
)
def test_invalid_data_or_batch_size_raises(data, batch_size, message):
    with pytest.raises(BadLoop, match=f"^{re.escape(message)}$"):
        check_data(data, batch_size)
