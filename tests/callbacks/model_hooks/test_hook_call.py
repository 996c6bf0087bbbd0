"""A function knows whose hook it is, its errors say so, and a copy of it does nothing."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest

from hookpoint.callbacks.model_hooks._hook_handles import HookCall, takes_name


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
def test_it_tells_the_name_to_who_asks_for_it(function, result):
    call = HookCall("Mine", "forward", "layer", function, 1)
    assert not call.was_called
    assert call(1) == result
    assert call.was_called


def test_a_name_that_takes_what_torch_gives_is_not_the_name():
    assert not takes_name(lambda name: None, 1)
    assert not takes_name(lambda *name: None, 1)
    assert not takes_name(lambda name, /: None, 0)


def test_an_error_says_where():
    with pytest.raises(ZeroDivisionError) as caught:
        HookCall("Mine(layer)", "forward", "layer", lambda one: 1 / one, 1)(0)
    assert caught.value.__notes__ == ["in Mine(layer), forward hook of 'layer'"]


def test_a_copy_does_nothing():
    call = HookCall("Mine", "forward", "layer", lambda one: 1 / one, 1)
    for one in (copy.deepcopy(call), copy.copy(call), pickle.loads(pickle.dumps(call))):
        assert one(0) is None
    assert not call.was_called
