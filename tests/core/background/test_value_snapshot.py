"""Copies of values are independent of the originals, at any depth, and keep their types."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy
import pytest
import torch

from hookpoint import Callback, Loop, Runner
from hookpoint.core.background._value_snapshot import ValueSnapshot
from hookpoint.core.errors import BadValue

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    names: list[str]


class Encoding(UserDict):
    pass


def test_tensors_are_detached_clones_and_arrays_are_copied():
    tensor, array = torch.ones(2, requires_grad=True), numpy.ones(2)
    copied = ValueSnapshot().of([tensor * 2, array])
    array += 1
    assert not copied[0].requires_grad
    assert copied[0].tolist() == [2, 2]
    assert copied[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: Pair(tensor, [1]),
        lambda tensor: Batch(tensor, ["a"]),
        lambda tensor: Encoding(x=tensor),
        lambda tensor: OrderedDict(x=tensor),
        lambda tensor: {"x": (tensor, {1})},
        lambda tensor: torch.nn.utils.rnn.pack_sequence([tensor]),
        lambda tensor: torch.max(tensor.reshape(1, -1), dim=0),
    ],
)
def test_containers_keep_their_type_and_share_nothing(make):
    tensor = torch.ones(3)
    value = make(tensor)
    copied = ValueSnapshot().of(value)
    assert type(copied) is type(value)
    text = repr(copied)
    tensor.zero_()
    getattr(value, "values", tensor).zero_() if isinstance(value, torch.return_types.max) else None
    assert repr(copied) == text


def test_immutable_values_are_kept_and_shared_values_are_copied_once():
    shared = [1]
    error = OSError("x")
    copied = ValueSnapshot().of([shared, shared, Path("a"), error, len, None])
    assert copied[0] is copied[1] is not shared
    assert copied[2:] == [Path("a"), error, len, None]
    assert ValueSnapshot().of(MappingProxyType({"a": shared})) == {"a": [1]}


def test_an_object_that_contains_itself_can_be_copied():
    class Node:
        def __init__(self):
            self.me, self.values = self, [1]

    node = Node()
    copied = ValueSnapshot().of(node)
    node.values.append(2)
    assert copied.me is copied
    assert copied.values == [1]


def test_a_lock_cannot_be_copied():
    import threading

    with pytest.raises(BadValue, match="lock cannot be copied: TypeError"):
        ValueSnapshot().of({"lock": threading.Lock()})


def test_later_callbacks_cannot_change_the_values_of_a_background_callback():
    seen, expected = [], []

    class Reads(Callback):
        asynchronous = True

        def on_train_iter_end(self, run, batch, outputs, loss):
            seen.append((run.step, batch[0].sum().item(), outputs.sum().item(), loss.item(), run.hyper["lr"]))
            assert not outputs.requires_grad

    class Changes(Callback):
        def on_train_iter_end(self, run, batch, outputs, loss):
            expected.append((run.step, batch[0].sum().item(), outputs.sum().item(), loss.item(), run.hyper["lr"]))
            batch[0].zero_()
            outputs.detach().zero_()
            loss.detach().zero_()
            run.hyper["lr"] = 0.1 / run.step

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callbacks = [Reads(), Changes()]
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, extra_callbacks=[], monitors=[])
    runner.fit((torch.randn(8, 3), torch.randn(8, 1)), epochs=2, batch_size=2)
    assert len(seen) == 8
    assert seen == expected


def test_logged_tensors_keep_the_value_they_were_logged_with():
    seen = []

    class Reads(Callback):
        asynchronous = True

        def on_epoch_end(self, logs):
            seen.append(dict(logs))

    total = torch.zeros(())
    with Loop([Reads()], extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(2):
            run.log(total=total.add_(epoch))
    assert seen == [{"total": 1.0}, {"total": 3.0}]
