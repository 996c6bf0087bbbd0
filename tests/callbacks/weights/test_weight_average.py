from __future__ import annotations

import pickle

import torch
from torch import nn

from hookpoint.callbacks.weights._weight_average import WeightAverage, averaged_tensors


def changed(model, seed):
    """Change the values of the model's tensors."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in [*model.parameters(), *model.buffers()]:
            one.copy_(torch.randn(one.shape, generator=numbers) if one.is_floating_point() else one + 1)


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_is_bitwise_that_of_a_plain_loop():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3).double())
    average = WeightAverage(buffers=True)
    average.follow(model)
    expected = {name: one.detach().clone() for name, one in model.state_dict().items() if one.is_floating_point()}
    for step in range(20):
        changed(model, step)
        average.update(model, 1 - 0.99)
        for name, value in expected.items():
            value.lerp_(model.state_dict()[name], 1 - 0.99)
    assert set(average.averages) == set(expected)
    assert all(torch.equal(average.averages[name], expected[name]) for name in expected)


def test_integers_are_not_averaged_and_buffers_only_on_request():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with_buffers, without = WeightAverage(buffers=True), WeightAverage(buffers=False)
    with_buffers.follow(model)
    without.follow(model)
    assert set(with_buffers.averages) - set(without.averages) == {"1.running_mean", "1.running_var"}
    assert set(without.averages) == dict(model.named_parameters()).keys()


def test_buffers_outside_the_state_dict_are_left_out():
    model = nn.Linear(1, 1)
    model.register_buffer("cache", torch.ones(3), persistent=False)
    model.register_buffer("nothing", None)
    assert [name for name, _ in averaged_tensors(model, buffers=True)] == ["weight", "bias"]


def test_tied_weights_are_averaged_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    average = WeightAverage(buffers=True)
    average.follow(model)
    assert list(average.averages) == ["0.weight"]
    both = {"one": model, "two": model[1]}
    average.follow(both)
    assert list(average.averages) == ["one.0.weight"]


def test_frozen_weights_are_averaged_once_they_are_unfrozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    average = WeightAverage(buffers=True)
    average.follow(model)
    assert list(average.averages) == ["1.weight", "1.bias"]
    before = average.averages["1.weight"]
    model[0].requires_grad_(True)
    average.follow(model)
    assert list(average.averages) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert average.averages["1.weight"] is before
    assert torch.equal(average.averages["0.weight"], model[0].weight)
    model[1].requires_grad_(False)  # a frozen weight keeps its average
    average.follow(model)
    assert len(average.averages) == 4


def test_new_and_reshaped_tensors_start_over_and_removed_tensors_are_dropped():
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    average = WeightAverage(buffers=True)
    average.follow(model)
    del model["a"]
    model["b"], model["c"] = nn.Linear(3, 2, bias=False), nn.Linear(1, 1, bias=False)
    average.follow(model)
    assert same(average.averages, {name: one.detach() for name, one in model.named_parameters()})


def test_half_precision_weights_are_averaged_in_float32():
    model = nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = WeightAverage(buffers=True)
    average.follow(model)
    with torch.no_grad():
        model.weight.fill_(2.0)
    for _ in range(1000):
        average.update(model, 0.001)
    assert average.averages["weight"].dtype == torch.float32
    assert abs(average.averages["weight"].item() - (2 - 0.999**1000)) < 1e-3


def test_lazy_weights_are_averaged_once_they_are_initialized():
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.LazyLinear(1, bias=False))
    average = WeightAverage(buffers=True)
    average.follow(model)
    assert list(average.averages) == ["0.weight"]
    model(torch.ones(1, 2))
    average.update(model, 0.5)
    assert list(average.averages) == ["0.weight", "1.weight"]


def test_an_average_begun_in_inference_mode_continues_outside():
    model = nn.Linear(1, 1)
    average = WeightAverage(buffers=True)
    with torch.inference_mode():
        average.follow(model)
    average.update(model, 0.5)
    assert not average.averages["weight"].is_inference()


def test_loaded_averages_are_copied():
    model = nn.Linear(2, 1)
    given = {name: torch.zeros_like(one) for name, one in model.state_dict().items()}
    average = WeightAverage(buffers=True)
    average.load(given)
    average.update(model, 0.5)
    assert torch.equal(average.averages["weight"], model.weight.detach() / 2)
    assert given["weight"].tolist() == [[0.0, 0.0]]


def test_an_average_is_pickled_without_the_model():
    model = nn.Linear(2, 1)
    average = WeightAverage(buffers=True)
    average.follow(model)
    again = pickle.loads(pickle.dumps(average))
    assert same(again.averages, average.averages)
    assert average.model is model
    assert again.model is None
