"""Whatever a guard is given as callbacks is compiled once, and kept no longer than the callbacks."""

from __future__ import annotations

import gc
import weakref

import pytest

from hookpoint import Callback, CallbackPipeline, Hooks, LambdaCallback, errors, on
from hookpoint.core.guard.guard import compiled


class Plain:
    def on_hello(self): ...


class Slotted:
    __slots__ = ()

    def on_hello(self): ...


@on("on_hello")
def function(): ...


def names(hooks):
    return [entry.name for entry in hooks.entries]


def test_hooks_stay_what_they_are():
    hooks = Hooks([Callback()])
    assert compiled(hooks) is hooks


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Callback(), ["Callback"]),
        ([Callback(), Plain()], ["Callback", "Plain"]),
        ((Plain(),), ["Plain"]),
        (Plain(), ["Plain"]),
        (function, ["function"]),
        (Slotted(), ["Slotted"]),
        (CallbackPipeline([Callback(), Callback()]), ["Callback", "Callback#2"]),
        ([], []),
        (CallbackPipeline(), []),
    ],
)
def test_one_several_or_a_pipeline_are_compiled(given, expected):
    assert names(compiled(given)) == expected


@pytest.mark.parametrize("given", [Callback(), Plain(), function, CallbackPipeline([Callback()])])
def test_what_was_compiled_is_kept(given):
    assert compiled(given) is compiled(given)
    assert compiled([given]) is compiled((given,)) is compiled(given)


def test_a_callback_that_can_be_iterated_over_is_one_callback():
    class Notes(Callback):
        def __iter__(self):
            raise AssertionError("nobody is to look inside")

        def on_epoch_end(self): ...

    assert names(compiled(Notes())) == ["Notes"]


def test_another_list_of_the_same_callbacks_is_the_same():
    first, second = Callback(), Callback()
    assert compiled([first, second]) is compiled([first, second])
    assert compiled([first, second]) is not compiled([second, first])
    assert compiled([first]) is not compiled([first, second])


def test_a_list_that_has_grown_is_compiled_anew():
    given = [Callback()]
    assert names(compiled(given)) == ["Callback"]
    given.append(Plain())
    assert names(compiled(given)) == ["Callback", "Plain"]


def test_many_combinations_do_not_pile_up():
    first = LambdaCallback()
    weakly = [weakref.ref(compiled([first, Callback()])) for _ in range(100)]
    gc.collect()
    assert sum(one() is not None for one in weakly) < 20


def test_what_was_compiled_goes_with_its_callbacks():
    callback = Callback()
    hooks = weakref.ref(compiled([callback]))
    del callback
    gc.collect()
    assert hooks() is None


def test_a_mistake_is_found_each_time():
    slip = LambdaCallback(on_epoch_ends=lambda: None)
    for _ in range(2):
        with pytest.raises(errors.UnknownPoint):
            compiled(slip)
