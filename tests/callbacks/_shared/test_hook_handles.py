"""Hooks are registered and removed together."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
from torch import nn

from hookpoint.callbacks._shared.hook_handles import HookCall, HookHandles, takes_name


def register(handles, model, *names):
    items = {name: getattr(model, name, None) for name in names}
    handles.register(model, "Mine", items, {"forward": lambda *given: None})


def test_remove_removes_all_hooks(hooked_modules):
    model, handles = nn.Sequential(nn.ReLU(), nn.ReLU()), HookHandles()
    assert not handles
    register(handles, model, "0")
    register(handles, model, "1")
    assert handles
    assert hooked_modules(model) == ["0", "1"]
    assert model[0] in handles
    assert model not in handles
    handles.remove()
    handles.remove()
    assert hooked_modules(model) == []
    assert not handles
    assert model[0] not in handles


def test_no_hook_stays_registered_when_a_module_is_missing(hooked_modules):
    model, handles = nn.Sequential(nn.ReLU()), HookHandles()
    with pytest.raises(AttributeError):
        register(handles, model, "0", "gone")
    assert hooked_modules(model) == []
    assert not handles


def test_handles_are_not_pickled():
    model, handles = nn.Sequential(nn.ReLU()), HookHandles()
    register(handles, model, "0")
    assert not pickle.loads(pickle.dumps(handles))
    handles.remove()


def test_at_most_five_uncalled_modules_are_named(caplog):
    model, handles = nn.Sequential(*(nn.ReLU() for _ in range(8))), HookHandles()
    register(handles, model, *"01234567")
    model[0](nn.Parameter())
    handles.warn_uncalled("Mine")
    assert "Mine was never called for 1, 2, 3, 4, 5 and 2 more. Possible reasons: " in caplog.text
    handles.remove()


# HookCall


def given(*args, **kwargs):
    return args, kwargs


def told(one, *, name):
    return one, name


def optional(one, name=None):
    return one, name


def first(name):
    return name


class Method:
    def call(self, one, name):
        return one, name


@pytest.mark.parametrize(
    ("function", "result"),
    [
        (given, ((1,), {})),
        (told, (1, "layer")),
        (optional, (1, "layer")),
        (first, 1),
        (Method().call, (1, "layer")),
        (functools.partial(told), (1, "layer")),
        (float, 1.0),
        (abs, 1),
    ],
)
def test_a_function_gets_the_name_if_it_has_a_name_parameter(function, result):
    call = HookCall("Mine", "forward", "layer", function, 1)
    assert not call.was_called
    assert call(1) == result
    assert call.was_called


def test_a_name_parameter_filled_by_torch_does_not_get_the_name():
    assert not takes_name(lambda name: None, 1)
    assert not takes_name(lambda *name: None, 1)
    assert not takes_name(lambda name, /: None, 0)


def test_an_error_in_a_hook_names_its_callback_and_module():
    with pytest.raises(ZeroDivisionError) as caught:
        HookCall("Mine(layer)", "forward", "layer", lambda one: 1 / one, 1)(0)
    assert caught.value.__notes__ == ["in Mine(layer), forward hook of 'layer'"]


def test_a_copied_hook_call_does_nothing():
    call = HookCall("Mine", "forward", "layer", lambda one: 1 / one, 1)
    for one in (copy.deepcopy(call), copy.copy(call), pickle.loads(pickle.dumps(call))):
        assert one(0) is None
    assert not call.was_called
