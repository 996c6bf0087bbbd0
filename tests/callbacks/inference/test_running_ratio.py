from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hookpoint.callbacks.inference._running_ratio import RunningRatio, to_double


def test_sums_are_divided_when_the_ratio_is_read():
    ratio = RunningRatio()
    for above, below in ((1, 3), (torch.tensor(4), 5), (np.int64(2), torch.tensor(6))):
        ratio.add(above, below)
    assert float(ratio) == 7 / 14
    assert float(ratio) == 0.5
    assert repr(ratio) == "RunningRatio(0.5)"


def test_an_empty_ratio_is_nan_or_the_given_value():
    assert math.isnan(float(RunningRatio()))
    assert float(RunningRatio(0, torch.tensor(0), empty=0.0)) == 0.0


def test_large_counts_are_exact():
    ratio = RunningRatio()
    for _ in range(3):
        ratio.add(torch.tensor(2**24 + 1), 2**25)  # one more than single precision can represent
    assert float(ratio) == (2**24 + 1) / 2**25


@pytest.mark.parametrize(
    ("value", "mean"),
    [
        (2.0, 2.0),
        (3, 3.0),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[1, 2], [3, 6]]), 3.0),
        (np.float32(0.5), 0.5),
        (np.array([1.0, 2.0]), 1.5),
        (torch.tensor([True, False]), 0.5),
    ],
)
def test_numbers_and_means_of_arrays_are_weighted(value, mean):
    ratio = RunningRatio()
    ratio.add_mean(value, 3)
    ratio.add_mean(0.0, 1)
    assert float(ratio) == mean * 3 / 4


def test_an_empty_array_does_not_count():
    ratio = RunningRatio()
    ratio.add_mean(torch.ones(0), 0)
    ratio.add_mean(1.0, 2)
    assert float(ratio) == 1.0


def test_half_precision_values_are_summed_in_double_precision():
    ratio = RunningRatio()
    for _ in range(4000):  # in half precision the sum would stop growing at 2048
        ratio.add_mean(torch.ones(2, dtype=torch.float16), 1)
    assert float(ratio) == 1.0
    assert to_double(torch.ones((), dtype=torch.bfloat16)).dtype == torch.float64
    assert to_double(np.float16(1)).dtype == np.float64


def test_the_sums_keep_no_graph():
    ratio, weight = RunningRatio(), torch.ones(2, requires_grad=True)
    ratio.add_mean(weight * 2, 1)
    assert not ratio._sums[0].requires_grad
