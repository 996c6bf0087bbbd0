"""Sizes of several gradients cover all of their values."""

from __future__ import annotations

import math

import pytest
import torch

from hookpoint.callbacks.model_hooks._gradient_sizes import dense, sizes, update_ratio


def test_sizes_cover_the_values_of_all_gradients():
    torch.manual_seed(0)
    gradients = [torch.randn(3, 2), torch.randn(5), torch.empty(0)]
    numbers = torch.cat([one.flatten() for one in gradients])
    found = {name: float(value) for name, value in sizes(gradients).items()}
    assert found == pytest.approx({"norm": float(numbers.norm()), "max": float(numbers.abs().max()), "nonfinite": 0.0})


def test_the_share_of_nonfinite_values_is_measured():
    found = sizes([torch.tensor([1.0, math.nan, math.inf]), torch.ones(5)])
    assert float(found["nonfinite"]) == 0.25
    assert math.isnan(float(found["norm"]))


def test_empty_gradients_have_no_sizes():
    assert sizes([]) == sizes([torch.empty(0)]) == {}


def test_the_update_ratio_is_relative_to_the_old_weights():
    old, new = [torch.tensor([3.0]), torch.tensor([4.0])], [torch.tensor([3.0]), torch.tensor([4.5])]
    assert float(update_ratio(zip(old, new, strict=True))) == pytest.approx(0.1)
    assert math.isfinite(float(update_ratio([(torch.zeros(2), torch.ones(2))])))


def test_duplicate_indices_of_a_sparse_gradient_are_summed():
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0], [2.0]]), (3, 1), check_invariants=True)
    assert float(sizes([dense(sparse)])["norm"]) == 3.0
