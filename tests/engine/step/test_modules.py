from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint.engine.step.modules import evaluating, load_weights, modes_kept, modules_of, training


def model():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Dropout()))


def modes(module):
    return [part.training for part in module.modules()]


def test_the_modules_of_a_model_of_several_models_and_of_a_function():
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    assert modules_of(one) == [one]
    assert modules_of({"a": one, "b": other, "c": len}) == [one, other]
    assert modules_of(len) == []


@pytest.mark.parametrize("around", [modes_kept, training, evaluating])
@pytest.mark.parametrize("fails", [False, True])
def test_every_part_is_put_back_into_the_mode_it_was_in(around, fails):
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


def test_what_is_frozen_in_a_training_model_stays_frozen():
    net = model()
    net[1].eval()
    with training(net):
        assert modes(net) == [True, True, False, True, True]


def test_a_model_in_eval_mode_is_trained_as_a_whole():
    net = model().eval()
    with training(net):
        assert all(modes(net))
    assert not any(modes(net))


def test_training_has_gradients_and_evaluating_has_none():
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
