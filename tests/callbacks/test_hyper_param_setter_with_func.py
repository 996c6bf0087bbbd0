from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hookpoint import Every, ObjAttrParam
from hookpoint.callbacks import HyperParamSetterWithFunc, ModelSaver
from hookpoint.core.errors import BadValue
from hookpoint.core.loop import Loop


def sgd(*rates):
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates or (1.0,)])


def train(setter, *, epochs, batches=1, optimizer=None, others=(), **given):
    seen, optimizer = [], optimizer or sgd()
    with Loop([setter, *others], optimizer=optimizer, **given) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(batches)):
                seen.append(run.hyper["lr"])
                optimizer.step()
    return seen


def test_it_is_asked_before_training_and_after_each_epoch():
    asked = []
    setter = HyperParamSetterWithFunc("lr", lambda done, old: asked.append((done, old)) or old / 2)
    assert train(setter, epochs=3) == [0.5, 0.25, 0.125]
    assert asked == [(0, 1.0), (1, 0.5), (2, 0.25), (3, 0.125)]


def test_none_changes_nothing():
    assert train(HyperParamSetterWithFunc("lr", lambda done, old: 0.5 if done == 2 else None), epochs=4) == [1.0, 1.0, 0.5, 0.5]


def test_within_epochs_it_gets_the_epochs_that_are_done():
    asked = []
    setter = HyperParamSetterWithFunc("lr", lambda done, old: asked.append(done)).when(Every(steps=2))
    train(setter, epochs=2, batches=4)
    assert asked == [0, 0, 0, 1, 1]


def test_each_group_has_its_own():
    optimizer = sgd(1.0, 0.5)
    train(HyperParamSetterWithFunc("lr", lambda done, old: old / 2), epochs=1, optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.125]


def test_a_resumed_run_goes_on_with_the_restored_value(disk):
    def make():
        return HyperParamSetterWithFunc("lr", lambda done, old: old / 2)

    whole = train(make(), epochs=4)
    first = train(make(), epochs=2, store=disk, others=[ModelSaver()])
    assert first + train(make(), epochs=4, store=disk, others=[ModelSaver()]) == whole


def test_an_attribute_is_restored_too(disk):
    values = []
    for epochs in (2, 4):
        thing = SimpleNamespace(dropout=1.0)
        setter = HyperParamSetterWithFunc(ObjAttrParam(thing, "dropout"), lambda done, old: old / 2)
        train(setter, epochs=epochs, store=disk, others=[ModelSaver()])
        values.append(thing.dropout)
    assert values == [0.125, 0.03125]


def test_a_second_run_starts_anew():
    setter = HyperParamSetterWithFunc("lr", lambda done, old: 1.0 / (done + 1))
    assert train(setter, epochs=2) == train(setter, epochs=2) == [1.0, 0.5]


def test_mistakes_are_refused():
    with pytest.raises(TypeError, match=r"takes a function, not 0\.1"):
        HyperParamSetterWithFunc("lr", 0.1)
    with pytest.raises(BadValue, match="takes a finite number"):
        train(HyperParamSetterWithFunc("lr", lambda done, old: float("nan")), epochs=1)
