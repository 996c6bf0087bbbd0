"""Hooks come and go together."""

from __future__ import annotations

import pickle

import pytest
from torch import nn

from hookpoint.callbacks.model_hooks._hook_call import HookCall
from hookpoint.callbacks.model_hooks._hook_handles import HookHandles


def hooks(model, *names):
    for name in names:
        call = HookCall("Mine", "forward", name, lambda *given: None, 3)
        yield model.get_submodule(name).register_forward_hook, call, {}


def left(model):
    return [name for name, module in model.named_modules() if module._forward_hooks]


def test_all_of_them_are_removed():
    model, handles = nn.Sequential(nn.ReLU(), nn.ReLU()), HookHandles()
    assert not handles
    handles.register(model, hooks(model, "0"))
    handles.register(model, hooks(model, "1"))
    assert handles
    assert left(model) == ["0", "1"]
    assert model[0] in handles
    assert model not in handles
    handles.remove()
    handles.remove()
    assert left(model) == []
    assert not handles
    assert model[0] not in handles


def test_where_one_cannot_be_registered_none_is():
    model, handles = nn.Sequential(nn.ReLU()), HookHandles()
    with pytest.raises(AttributeError):
        handles.register(model, hooks(model, "0", "gone"))
    assert left(model) == []
    assert not handles


def test_they_are_not_pickled():
    model, handles = nn.Sequential(nn.ReLU()), HookHandles()
    handles.register(model, hooks(model, "0"))
    assert not pickle.loads(pickle.dumps(handles))
    handles.remove()


def test_what_is_never_called_is_named_and_not_more_than_five(caplog):
    model, handles = nn.Sequential(*(nn.ReLU() for _ in range(8))), HookHandles()
    handles.register(model, hooks(model, *"01234567"))
    model[0](nn.Parameter())
    handles.warn_uncalled("Mine")
    assert "Mine was never called for 1, 2, 3, 4, 5 and 2 more: " in caplog.text
    handles.remove()
