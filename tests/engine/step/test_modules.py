from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from hookpoint import Runner
from hookpoint.core.errors import BadLoop
from hookpoint.engine.step.modules import (
    check_optimizer,
    choose_device,
    evaluating,
    load_weights,
    modes_kept,
    modules_of,
    place_model,
    training,
)


def model():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout()))


def modes(module):
    return [part.training for part in module.modules()]


def test_modules_of_finds_the_modules_of_one_or_several_models():
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    assert modules_of(one) == [one]
    assert modules_of({"a": one, "b": other, "c": len}) == [one, other]
    assert modules_of(len) == []


@pytest.mark.parametrize("around", [modes_kept, training, evaluating])
@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_mode_back(around, fails):
    net, other = model(), model().eval()
    net[1].eval()
    net[2].eval()
    net[2][0].train()
    before = modes(net), modes(other), torch.is_grad_enabled()
    with pytest.raises(ValueError, match="inside") if fails else modes_kept(net), around({"net": net, "other": other}):
        net.train()
        other.train()
        other[1].eval()
        if fails:
            raise ValueError("inside")
    assert (modes(net), modes(other), torch.is_grad_enabled()) == before


def test_a_frozen_module_of_a_training_model_stays_frozen():
    net = model()
    net[1].eval()
    with training(net):
        assert modes(net) == [True, True, False, True, True]


def test_a_model_in_eval_mode_is_trained_as_a_whole():
    net = model().eval()
    with training(net):
        assert all(modes(net))
    assert not any(modes(net))


def test_training_enables_gradients_and_evaluating_disables_them():
    net = model()
    with torch.no_grad(), training(net):
        assert torch.is_grad_enabled()
        with evaluating(net):
            assert not torch.is_grad_enabled()
            assert not any(modes(net))
        assert torch.is_grad_enabled()


def test_weights_are_loaded_into_one_model_or_several():
    source, one, two = model(), model(), model()
    load_weights(one, source.state_dict())
    load_weights({"a": two, "b": nn.Linear(1, 1)}, {"a": source.state_dict()})
    for loaded in (one, two):
        assert torch.equal(loaded[0].weight, source[0].weight)


# Devices


def spread():
    """A model on the CPU and another device."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def devices(model):
    return [parameter.device.type for parameter in model.parameters()]


@pytest.mark.parametrize("wanted", ["cpu", "meta", torch.device("meta")])
def test_the_requested_device_is_chosen(wanted):
    assert choose_device(nn.Linear(2, 2), wanted) == torch.device(wanted)


def test_auto_is_the_device_of_the_model():
    assert choose_device(nn.Linear(2, 2, device="meta"), "auto") == torch.device("meta")
    assert choose_device({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, device="meta")}, "auto") == torch.device("meta")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.ReLU(), lambda x: x], ids=["layer", "no parameters", "function"])
def test_auto_is_the_cpu_without_an_accelerator(model):
    assert choose_device(model, "auto") == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_raises_without_a_cuda_device(wanted):
    with pytest.raises(BadLoop) as caught:
        choose_device(nn.Linear(2, 2), wanted)
    assert str(caught.value) == (
        f'device=\'{wanted}\': no CUDA device is available.\n  use       device="auto" or device="cpu"'
    )


@pytest.mark.parametrize("wanted", ["gpu", "cuda:first", "", 0.5, None])
def test_an_invalid_device_raises_with_the_forms(wanted):
    with pytest.raises(BadLoop) as caught:
        Runner(nn.Linear(2, 2), device=wanted)
    assert str(caught.value) == (
        f'device={wanted!r} is not a device that torch can use.\n  use       "auto", "cpu", "cuda", "cuda:0" or "mps"'
    )


def test_a_model_is_moved_unless_it_is_spread_over_devices():
    one, two = nn.Linear(2, 2), spread()
    models = {"one": one, "two": two, "not a module": len}
    place_model(models, torch.device("meta"))
    assert devices(one) == ["meta", "meta"]
    assert devices(two) == ["cpu", "cpu", "meta", "meta"]


def test_an_optimizer_with_any_parameter_of_the_model_is_accepted():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    check_optimizer(model, torch.optim.SGD([model.bias, *other.parameters()], lr=0.1))
    check_optimizer(model, None)
    check_optimizer(nn.ReLU(), torch.optim.SGD(other.parameters(), lr=0.1))  # the model of a MainCallback may be anything
    check_optimizer({"a": model, "b": other}, {"a": torch.optim.SGD(model.parameters(), lr=0.1)})


@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_of_another_model_raises(several):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    if several:
        model, optimizer = {"a": model}, {"a": torch.optim.SGD(model.parameters(), lr=0.1), "b": optimizer}
    with pytest.raises(BadLoop) as caught:
        check_optimizer(model, optimizer)
    assert str(caught.value) == (
        "the optimizer has none of the model's parameters.\n  write     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("runs/mine", "got a str.\n  write     init_weights=hookpoint.load_weights(path)"),
        (Path("mine.pt"), "init_weights=hookpoint.load_weights(path)"),
        (nn.Linear(1, 1), "got a Linear.\n  write     init_weights=model.state_dict()"),
    ],
)
def test_init_weights_other_than_a_state_dict_raise(weights, message):
    for net in (nn.Linear(1, 1), {"one": nn.Linear(1, 1)}):
        with pytest.raises(BadLoop, match=re.escape(message)):
            Runner(net, init_weights=weights)
