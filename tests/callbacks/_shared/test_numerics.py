from __future__ import annotations

import math

import numpy
import pytest
import torch

from hookpoint.callbacks._shared.numerics import largest, nonfinite_names

KINDS = [torch.tensor, numpy.array, lambda values: values[0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_nonfinite_value_is_detected(kind, bad):
    assert not math.isfinite(float(largest([kind([0.5]), kind([bad, 0.5]), kind([2.0])])))


@pytest.mark.parametrize("kind", KINDS)
def test_finite_values_return_the_largest_magnitude(kind):
    assert float(largest([kind([0.5]), kind([-3.0, 1.0]), kind([2.0])])) == 3.0


def test_tensors_and_arrays_can_be_mixed():
    assert not math.isfinite(float(largest([torch.tensor([1.0]), numpy.array([math.nan])])))
    assert not math.isfinite(float(largest([torch.tensor([math.nan]), numpy.array([1.0])])))


def test_integers_booleans_and_empty_arrays_do_not_count():
    assert (
        float(largest([torch.tensor([1, 2]), torch.tensor([True]), torch.empty(0), numpy.array([3]), numpy.array([]), 7]))
        == 0.0
    )
    assert float(largest([])) == 0.0


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e5m2]
)
def test_every_floating_point_dtype_is_supported(dtype):
    good = torch.tensor([0.5, -2.0]).to(dtype)
    bad = torch.tensor([0.5, math.nan]).to(dtype)
    assert math.isfinite(float(largest([good])))
    assert not math.isfinite(float(largest([good, bad])))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_largest_finite_values_do_not_overflow(dtype):
    assert math.isfinite(float(largest([torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)])))


def test_at_most_three_nonfinite_tensors_are_named():
    named = [(f"p{number}", torch.tensor([math.nan if number % 2 else 1.0])) for number in range(10)]
    assert nonfinite_names(named[:2]) == "p1"
    assert nonfinite_names(named) == "p1, p3, p5 and 2 more"
    assert nonfinite_names(named[:1]) == ""
