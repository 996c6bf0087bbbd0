from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint.core.errors import BadLoop
from hookpoint.engine.step.modules import check_optimizer, choose_device, place_model


def spread():
    """A model on the CPU and another device."""
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))


def devices(model):
    return [parameter.device.type for parameter in model.parameters()]


@pytest.mark.parametrize("wanted", ["cpu", "meta", torch.device("meta")])
def test_the_device_that_is_wanted_is_chosen(wanted):
    assert choose_device(nn.Linear(2, 2), wanted) == torch.device(wanted)


def test_auto_is_the_device_the_model_is_on_already():
    assert choose_device(nn.Linear(2, 2, device="meta"), "auto") == torch.device("meta")
    assert choose_device({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2, device="meta")}, "auto") == torch.device("meta")


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.ReLU(), lambda x: x], ids=["layer", "no parameters", "function"])
def test_auto_without_an_accelerator_is_the_host(model):
    assert choose_device(model, "auto") == torch.device("cpu")


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", torch.device("cuda")])
def test_cuda_where_there_is_none_is_refused(wanted):
    with pytest.raises(BadLoop) as caught:
        choose_device(nn.Linear(2, 2), wanted)
    assert str(caught.value) == (
        f'device=\'{wanted}\': no CUDA device is available.\n  use       device="auto" or device="cpu"'
    )


def test_a_model_is_moved_unless_it_is_spread_over_devices():
    one, two = nn.Linear(2, 2), spread()
    models = {"one": one, "two": two, "not a module": len}
    place_model(models, torch.device("meta"))
    assert devices(one) == ["meta", "meta"]
    assert devices(two) == ["cpu", "cpu", "meta", "meta"]


def test_an_optimizer_is_for_at_least_one_parameter_of_the_model():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    check_optimizer(model, torch.optim.SGD([model.bias, *other.parameters()], lr=0.1))
    check_optimizer(model, None)
    check_optimizer(nn.ReLU(), torch.optim.SGD(other.parameters(), lr=0.1))  # the model of a MainCallback may be anything
    check_optimizer({"a": model, "b": other}, {"a": torch.optim.SGD(model.parameters(), lr=0.1)})


@pytest.mark.parametrize("several", [False, True])
def test_an_optimizer_of_another_model_is_refused(several):
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    if several:
        model, optimizer = {"a": model}, {"a": torch.optim.SGD(model.parameters(), lr=0.1), "b": optimizer}
    with pytest.raises(BadLoop) as caught:
        check_optimizer(model, optimizer)
    assert str(caught.value) == (
        "the optimizer has none of the model's parameters.\n  write     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
