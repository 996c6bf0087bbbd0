from __future__ import annotations

import math

import pytest
import torch

from hookpoint.core.errors import NotFinite
from hookpoint.storage.checkpoint.check_finite import not_finite, refuse_if_not_finite

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_single_bad_number_raises(dtype, bad):
    weights = torch.ones(1000)
    weights[777] = bad
    with pytest.raises(NotFinite, match=r"^a of the model contains NaN or infinity\."):
        refuse_if_not_finite({"model": {"a": weights.to(dtype)}}, {"model": ["a"]})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_finite_numbers_whose_sum_overflows_pass(dtype):
    largest = torch.full((4,), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    model = {"a": largest, "none": torch.empty(0, dtype=dtype), "whole": torch.ones(1, dtype=torch.int64)}
    refuse_if_not_finite({"model": model}, {"model": None})


def test_infinities_that_would_cancel_out_raise():
    with pytest.raises(NotFinite):
        refuse_if_not_finite({"model": {"a": torch.tensor([math.inf, -math.inf])}}, {"model": ["a"]})


def test_the_error_names_only_the_first_few_tensors():
    weights = {name: torch.tensor(math.nan) for name in "abcde"}
    with pytest.raises(NotFinite, match=r"^a, b, c and 2 more of the model contain NaN or infinity\.") as caught:
        refuse_if_not_finite({"model": weights}, {"model": list("abcde")})
    assert isinstance(caught.value, ValueError)


def test_tensors_that_are_not_listed_may_contain_nan():
    model = {"mask": torch.tensor(-math.inf), "w": torch.ones(1)}
    refuse_if_not_finite({"model": model, "other": torch.tensor(math.nan)}, {"model": ["w", "not-there"], "criterion": None})


def test_tensors_of_several_models_are_named_with_their_model():
    models = {"critic": {"w": torch.tensor(math.nan)}, "other": {"w": torch.ones(1)}}
    with pytest.raises(NotFinite, match=r"^critic\.w of the model contains"):
        refuse_if_not_finite({"model": models}, {"model": ["other.w", "critic.w"]})


def test_all_tensors_of_an_optimizer_are_checked():
    state = {
        "state": {0: {"step": torch.tensor(1.0), "exp_avg_sq": torch.tensor([1.0, math.inf])}},
        "param_groups": [{"lr": 0.1}],
    }
    with pytest.raises(NotFinite, match=r"^state\.0\.exp_avg_sq of the optimizer contains NaN or infinity\."):
        refuse_if_not_finite({"optimizer": state}, {"optimizer": None})


def test_lazy_and_meta_tensors_count_as_finite():
    lazy = torch.nn.LazyBatchNorm1d()
    named = {**dict(lazy.named_buffers()), "meta": torch.empty(2, device="meta"), "bad": torch.tensor(math.nan)}
    assert not_finite(named.items()) == ["bad"]
