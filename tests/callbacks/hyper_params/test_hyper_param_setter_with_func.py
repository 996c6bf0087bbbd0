from __future__ import annotations

from types import SimpleNamespace

import pytest

from hookpoint import Every, ObjAttrParam
from hookpoint.callbacks import HyperParamSetterWithFunc, ModelSaver
from hookpoint.core.errors import BadValue


def test_the_function_is_called_before_training_and_after_each_epoch(rates_of_steps):
    asked = []
    setter = HyperParamSetterWithFunc("lr", lambda done, old: asked.append((done, old)) or old / 2)
    assert rates_of_steps([setter], epochs=3) == [0.5, 0.25, 0.125]
    assert asked == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)]


def test_returning_none_changes_nothing(rates_of_steps):
    assert rates_of_steps([HyperParamSetterWithFunc("lr", lambda done, old: 0.5 if done == 2 else None)], epochs=4) == [
        1.0,
        1.0,
        0.5,
        0.5,
    ]


def test_within_an_epoch_the_function_gets_the_number_of_finished_epochs(rates_of_steps):
    asked = []
    setter = HyperParamSetterWithFunc("lr", lambda done, old: asked.append(done)).when(Every(steps=2))
    rates_of_steps([setter], epochs=2, batches=4)
    assert asked == [0, 0, 0, 1, 1]


def test_each_group_is_set_from_its_own_value(rates_of_steps, sgd):
    optimizer = sgd(1.0, 0.5)
    rates_of_steps([HyperParamSetterWithFunc("lr", lambda done, old: old / 2)], epochs=1, optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]


def test_a_resumed_run_continues_from_the_restored_value(rates_of_steps, disk):
    def make():
        return HyperParamSetterWithFunc("lr", lambda done, old: old / 2)

    whole = rates_of_steps([make()], epochs=4)
    first = rates_of_steps([make(), ModelSaver()], epochs=2, store=disk)
    assert first + rates_of_steps([make(), ModelSaver()], epochs=4, store=disk) == whole


def test_an_attribute_is_restored(rates_of_steps, disk):
    values = []
    for epochs in (2, 4):
        thing = SimpleNamespace(dropout=1.0)
        setter = HyperParamSetterWithFunc(ObjAttrParam(thing, "dropout"), lambda done, old: old / 2)
        rates_of_steps([setter, ModelSaver()], epochs=epochs, store=disk)
        values.append(thing.dropout)
    assert values == [0.125, 0.03125]


def test_a_second_run_starts_from_scratch(rates_of_steps):
    setter = HyperParamSetterWithFunc("lr", lambda done, old: 1.0 / (done + 1))
    assert rates_of_steps([setter], epochs=2) == rates_of_steps([setter], epochs=2) == [1.0, 0.5]


def test_invalid_functions_and_values_raise(rates_of_steps):
    with pytest.raises(TypeError, match=r"must be a function, got 0\.1"):
        HyperParamSetterWithFunc("lr", 0.1)
    with pytest.raises(BadValue, match="must be a finite number"):
        rates_of_steps([HyperParamSetterWithFunc("lr", lambda done, old: float("nan"))], epochs=1)
