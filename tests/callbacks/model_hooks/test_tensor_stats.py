"""Statistics of several tensors cover all of their values."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from hookpoint.callbacks.model_hooks._tensor_stats import TensorStats, first_tensor


def stats(*tensors):
    found = TensorStats()
    for tensor in tensors:
        found.add(tensor)
    return found.values()


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_statistics_cover_the_values_of_all_tensors(number, dtype):
    torch.manual_seed(0)
    tensors = [(torch.randn(3 + one, 4) + one).relu().to(dtype) for one in range(number)]
    together = torch.cat(tensors).double()
    found = {name: float(value) for name, value in stats(*tensors).items()}
    expected = {
        "mean": together.mean(),
        "std": together.std(correction=0),
        "zeros": (together == 0).double().mean(),
        "max": together.abs().max(),
    }
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)


def test_nan_values_are_not_hidden():
    found = stats(torch.tensor([1.0, float("nan")]))
    assert found["mean"].isnan()
    assert found["max"].isnan()


def test_integers_and_empty_tensors_do_not_count():
    assert stats(torch.tensor([1, 2]), torch.empty(0)) == {}


def test_the_first_tensor_is_found_in_nested_containers():
    one = torch.ones(1)
    for output in (one, (one, 2), [None, [one]], {"logits": one}, OrderedDict(a="x", b=(one,))):
        assert first_tensor(output) is one
    assert first_tensor((1, {"a": None})) is None


def test_the_measured_tensor_is_not_changed():
    tensor = torch.tensor([0.0, 2.0], requires_grad=True)
    assert not stats(tensor)["mean"].requires_grad
    assert tensor.tolist() == [0.0, 2.0]


def test_the_first_tensor_is_found_in_a_dataclass_or_named_tuple():
    @dataclass
    class Output:
        loss: Any
        logits: Any

    class Pair(NamedTuple):
        first: Any
        second: Any

    tensor = torch.ones(2)
    assert first_tensor(Output(None, (None, tensor))) is tensor
    assert first_tensor(Pair(None, tensor)) is tensor
