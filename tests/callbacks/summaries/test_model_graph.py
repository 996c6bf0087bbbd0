from __future__ import annotations

import random

import numpy
import pytest
import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef

import hookpoint
from hookpoint import Loop
from hookpoint.callbacks.summaries._model_graph import ModelGraph, as_positional


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3)
        self.norm = torch.nn.BatchNorm2d(2)
        self.frozen = torch.nn.BatchNorm2d(2).eval()
        self.drop = torch.nn.Dropout()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, scale=None):
        self.calls += 1
        hookpoint.log("seen", 1.0)
        noise = random.random() + numpy.random.rand() + torch.rand(())
        return self.drop(self.frozen(self.norm(self.conv(x)))) * noise


def everything(model):
    state = {name: one.clone() for name, one in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    return state, modes, random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()


def same(before, after):
    states = all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    return states and before[1:4] == after[1:4] and torch.equal(before[4], after[4])


def test_a_graph_contains_the_nodes_and_the_text_of_the_model():
    graph = ModelGraph.of(Net(), (torch.rand(2, 1, 5, 5),))
    nodes = GraphDef.FromString(graph.graph_def).node
    assert any("Conv2d[conv]" in node.name for node in nodes)
    assert "(conv): Conv2d(1, 2" in graph
    assert isinstance(graph, str)


def test_tracing_changes_nothing(capsys):
    model = Net()
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    before = everything(model)
    ModelGraph.of(model, (torch.rand(2, 1, 5, 5, generator=torch.Generator()),))
    assert same(before, everything(model))
    assert torch.equal(model.conv.weight.grad, torch.ones_like(model.conv.weight))
    assert model.conv.bias.grad is None
    assert capsys.readouterr() == ("", "")


def test_tracing_that_fails_changes_nothing(capsys):
    class Fails(Net):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("not today")

    model = Fails()
    before = everything(model)
    with pytest.raises(RuntimeError, match="not today"):
        ModelGraph.of(model, (torch.rand(2, 1, 5, 5, generator=torch.Generator()),))
    assert same(before, everything(model))
    assert capsys.readouterr() == ("", "")


def test_the_comparison_detects_changes():
    model = Net()
    before = everything(model)
    model.eval()
    assert not same(before, everything(model))
    model.train()
    model.frozen.eval()
    assert same(before, everything(model))
    torch.rand(())
    assert not same(before, everything(model))


def test_values_logged_by_the_model_are_dropped():
    with Loop(extra_callbacks=[], monitors=[]) as run:
        ModelGraph.of(Net(), (torch.rand(2, 1, 5, 5),))
        assert hookpoint.current_run() is run
    assert "seen" not in run.metrics


def test_outputs_can_be_a_dict():
    class Dict(torch.nn.Module):
        def forward(self, x):
            return {"logits": x * 2}

    assert GraphDef.FromString(ModelGraph.of(Dict(), (torch.ones(2),)).graph_def).node


def test_keyword_arguments_are_converted_to_positional_arguments():
    class Takes(torch.nn.Module):
        def forward(self, ids, mask=None, *, flag=False, **others): ...

    assert as_positional(Takes(), (1,), {}) == (1,)
    assert as_positional(Takes(), (1,), {"mask": 2}) == (1, 2)
    assert as_positional(Takes(), (), {"mask": 2, "ids": 1}) == (1, 2)
    for kwargs, name in (({"flag": True}, "flag"), ({"other": 1}, "other")):
        with pytest.raises(TypeError, match=f"it is called with {name} by keyword"):
            as_positional(Takes(), (1,), kwargs)


def test_a_keyword_argument_after_a_gap_raises():
    class Takes(torch.nn.Module):
        def forward(self, ids, mask=None, labels=None): ...

    with pytest.raises(TypeError, match="it is called with labels by keyword"):
        as_positional(Takes(), (1,), {"labels": 3})
