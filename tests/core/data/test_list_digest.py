from __future__ import annotations

import numpy as np
import pytest
import torch

from hookpoint.core.data.list_digest import list_digest


@pytest.mark.parametrize(
    "of",
    [int, str, lambda number: bytes([number]), torch.tensor, lambda number: np.full((2, 3), number), lambda n: {"x": (n, n)}],
)
def test_the_digest_changes_with_the_items_and_their_order(of):
    items = [of(number) for number in range(20)]
    assert list_digest(items, 0) == list_digest(list(items), 0) != list_digest(items[::-1], 0)
    assert list_digest(items, 0) != list_digest([of(number + 1) for number in range(20)], 0)


def test_only_the_remaining_items_are_digested():
    assert list_digest([1, 2, 3, 4], 2) == list_digest([7, 8, 3, 4], 2) != list_digest([1, 2, 4, 3], 2)
    assert list_digest([1, 2], 2) is None
    assert list_digest([], 0) is None


def test_items_whose_repr_depends_on_the_process_have_no_digest():
    assert list_digest([object()], 0) is None
    assert list_digest(iter([1]), 0) is None


def test_the_digest_depends_on_shapes_and_string_lengths():
    assert list_digest([torch.zeros(2, 3)], 0) != list_digest([torch.zeros(3, 2)], 0)
    assert list_digest([torch.zeros(0, 3)], 0) != list_digest([torch.zeros(3, 0)], 0)
    assert list_digest(["a" * 100], 0) != list_digest(["a" * 101], 0)


def test_a_view_has_the_digest_of_its_contiguous_copy():
    large = torch.arange(2.0**16).view(2, 128, 256).permute(0, 2, 1)
    assert list_digest([large], 0) == list_digest([large.contiguous()], 0)
