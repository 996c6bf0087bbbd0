from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint.callbacks.tensors._shown_tensor import ShownTensor, first_elements


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, "x 0.25"),
        (3, "x 3"),
        (torch.tensor(1 / 3), "x 0.333333"),
        (torch.tensor(True), "x True"),
        (torch.tensor([1, 2]), "x 2 [1 2]"),
        (torch.arange(4).reshape(2, 2), "x 2 x 2 [0 1 2 3]"),
        (torch.arange(6.0).reshape(2, 3), "x 2 x 3 [0 1 2 3 ...]"),
        (torch.zeros(0, 3), "x 0 x 3 []"),
        (torch.tensor([0.5], dtype=torch.bfloat16), "x 1 [0.5]"),
        (torch.tensor([float("nan")]), "x 1 [nan]"),
        (numpy.float32(0.5), "x 0.5"),
        (numpy.arange(9), "x 9 [0 1 2 3 ...]"),
        (torch.eye(3).to_sparse(), "x 3 x 3 [1 1 1]"),
    ],
)
def test_a_value_is_a_short_line(value, expected):
    shown = ShownTensor("x", value, 4)
    assert shown.is_there
    assert str(shown) == expected


@pytest.mark.parametrize("make", [torch.arange, numpy.arange])
@pytest.mark.parametrize("shape", [(24,), (2, 12), (2, 3, 4), (4, 3, 2), (24, 1), (1, 24)])
@pytest.mark.parametrize("most", [1, 2, 5, 7, 30])
def test_the_first_elements_come_in_order_whatever_the_shape(make, shape, most):
    assert first_elements(make(24).reshape(shape), most).tolist() == list(range(min(most, 24)))


def test_of_a_big_tensor_no_more_is_copied_than_is_shown():
    big = torch.zeros(1000, 1000).T
    assert ShownTensor("x", big, 4)._values._copy.untyped_storage().nbytes() == 4 * 4


@pytest.mark.parametrize("value", [torch.ones(2), numpy.ones(2)])
def test_it_shows_the_moment_it_was_made(value):
    shown = ShownTensor("x", value, 4)
    value[:] = 9
    assert str(shown) == "x 2 [1 1]"
