"""Modules and parameters go by all of their names, also in a compiled model."""

from __future__ import annotations

import torch
from torch import nn

from hookpoint.callbacks._shared.named_modules import is_compiled, named_modules, named_parameters


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])
        self.again = self.layers[0]

    def forward(self, x):
        return self.again(self.layers[1](self.layers[0](x)))


def names(pairs):
    return [name for name, _ in pairs]


def test_a_shared_module_has_both_names_and_module_lists_are_left_out():
    assert names(named_modules(Net())) == ["", "layers.0", "layers.1", "again"]


def test_a_tied_parameter_has_both_names():
    expected = ["layers.0.weight", "layers.0.bias", "again.weight", "again.bias"]
    assert names(named_parameters(Net())) == expected


def test_names_of_several_models_start_with_their_keys():
    models = {"g": nn.Linear(1, 1), "d": nn.Sequential(nn.ReLU())}
    assert names(named_modules(models)) == ["g", "d", "d.0"]
    assert names(named_parameters(models)) == ["g.weight", "g.bias"]
    assert names(named_modules([nn.ReLU()])) == ["0"]


def test_values_that_are_not_models_have_no_names():
    assert names(named_modules(None)) == names(named_parameters("a model")) == []


def test_a_compiled_model_keeps_its_names():
    net = Net()
    compiled = torch.compile(net, backend="eager")
    assert dict(named_modules(compiled)) == dict(named_modules(net))
    assert names(named_parameters(compiled)) == names(named_parameters(net))
    assert is_compiled(compiled)
    assert not is_compiled(net)


def test_a_compiled_submodule_is_detected():
    net, other = Net(), Net()
    net.layers[0] = torch.compile(net.layers[0], backend="eager")
    other.again.compile(backend="eager")
    assert is_compiled(net)
    assert is_compiled(other)
    assert names(named_modules(net))[:2] == ["", "layers.0"]
    assert not is_compiled(None)


def test_a_model_of_another_library_only_needs_named_parameters():
    class Other:
        def named_parameters(self):
            return [("weight", 1.0)]

    assert list(named_parameters({"a": Other()})) == [("a.weight", 1.0)]
