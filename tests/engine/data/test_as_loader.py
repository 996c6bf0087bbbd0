from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import ChainDataset, DataLoader, Dataset, IterableDataset, TensorDataset

from hookpoint.core.errors import BadLoop
from hookpoint.engine.data.as_loader import as_loader, described, move

META = torch.device("meta")  # a device that always exists and is not the CPU


@dataclass(frozen=True)
class Batch:
    x: Any
    y: Any = None
    both: Any = field(init=False, default=None)


class Pair(NamedTuple):
    x: Any
    y: Any


class ModelOutput(OrderedDict):
    """Like Hugging Face's ModelOutput: items are also attributes, and `update` raises."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self[name] = part

    def __setitem__(self, name, part):
        super().__setitem__(name, part)
        super().__setattr__(name, part)

    def update(self, *given, **more):
        raise Exception("You cannot use ``update`` on a ModelOutput instance.")

    def __reduce__(self):
        return _model_output, (dict(self),)


def _model_output(parts):
    return ModelOutput(**parts)


# Loaders


def test_an_iterable_of_batches_is_returned_unchanged():
    for data in ([1, 2], iter([1]), (n for n in [1]), DataLoader([1, 2]), {1: "a"}):
        assert as_loader(data, None, shuffle=True) is data


def test_an_object_with_only_getitem_is_a_loader():
    class Old:
        def __getitem__(self, index):
            raise IndexError

    old = Old()
    assert as_loader(old, None, shuffle=True) is old


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray], ids=["tensors", "arrays"])
def test_a_tuple_is_a_dataset_that_is_shuffled_on_request(kind):
    x, y = kind(np.arange(10.0)), kind(np.arange(10) * 2)
    torch.manual_seed(0)
    shuffled = [torch.stack(batch) for batch in as_loader((x, y), 4, shuffle=True)]
    in_order = [torch.stack(batch) for batch in as_loader((x, y), 4, shuffle=False)]
    assert [part.shape[1] for part in shuffled] == [4, 4, 2]
    assert torch.cat(in_order, 1).tolist() == [list(range(10)), list(range(0, 20, 2))]
    assert torch.cat(shuffled, 1)[0].tolist() != list(range(10))
    assert sorted(torch.cat(shuffled, 1)[0].tolist()) == list(range(10))
    assert torch.equal(torch.cat(shuffled, 1)[0] * 2, torch.cat(shuffled, 1)[1])


def test_a_shuffled_tuple_has_the_same_order_as_a_dataloader():
    x = torch.arange(10)
    torch.manual_seed(3)
    expected = [batch[0].tolist() for batch in DataLoader(TensorDataset(x), batch_size=3, shuffle=True)]
    torch.manual_seed(3)
    assert [batch[0].tolist() for batch in as_loader((x,), 3, shuffle=True)] == expected


class Squares(Dataset):
    """A map-style dataset that never raises IndexError."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index)), torch.tensor(float(index**2))


class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(2), torch.zeros(2)])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_chain_of_streams_needs_no_length(shuffle):
    loader = as_loader(ChainDataset([Stream(), Stream()]), 3, shuffle=shuffle)  # its __len__ raises
    assert [len(batch) for batch in loader] == [3, 1]


class Rows:
    """Like a Hugging Face dataset: rows by index, but not a torch Dataset."""

    __module__ = "datasets.arrow_dataset"

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index >= 4:
            raise IndexError
        return {"x": torch.tensor(index)}


def test_a_dataset_is_batched_like_a_tuple_of_its_columns():
    columns = tuple(torch.stack(column) for column in zip(*(Squares()[index] for index in range(10)), strict=True))
    for shuffle in (True, False):
        found = []
        for data in (Squares(), columns):
            torch.manual_seed(0)
            found.append([torch.stack(tuple(batch)).tolist() for batch in as_loader(data, 4, shuffle=shuffle)])
        assert found[0] == found[1]


@pytest.mark.parametrize(("data", "name"), [(Squares(), "Squares"), (Rows(), "Rows")])
def test_a_dataset_without_a_batch_size_raises(data, name):
    with pytest.raises(BadLoop) as caught:
        as_loader(data, shuffle=False)
    assert str(caught.value) == (
        f"{name} is a dataset of samples and needs a batch size.\n"
        "  give      batch_size=32\n"
        "  write     batch_size=None if its items are batches"
    )


def test_dataset_items_are_batches_with_batch_size_none():
    assert [x.item() for x, _ in as_loader(Squares(), None, shuffle=True)] == list(range(10))
    assert [row["x"].item() for row in as_loader(Rows(), None, shuffle=True)] == [0, 1, 2, 3]
    assert [batch["x"].tolist() for batch in as_loader(Rows(), 3, shuffle=False)] == [[0, 1, 2], [3]]


def test_a_stream_yields_batches_unless_a_batch_size_is_given():
    stream = Stream()
    assert as_loader(stream, shuffle=True) is stream
    assert as_loader(stream, None, shuffle=True) is stream
    assert [batch.shape for batch in as_loader(stream, 2, shuffle=True)] == [(2, 2)]


def test_datasets_and_tuples_train_to_the_same_metrics(runner):
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 2))
    losses = []
    for train, val in ((data, data), (data.tensors, data), (data, data.tensors), (data.tensors, DataLoader(data, 4))):
        losses.append({**runner(seed=3).fit(train, val, epochs=2, batch_size=4).metrics})
    assert all(one == losses[0] for one in losses)
    assert runner(seed=3).validate(data, batch_size=4) == runner(seed=3).validate(data.tensors, batch_size=4)
    assert len(runner().predict(TensorDataset(torch.ones(8, 3)), batch_size=4)) == 2


def test_empty_data_raises_the_error_of_an_empty_loader(runner):
    empty = torch.ones(0, 3), torch.ones(0, 2)
    for data in (empty, TensorDataset(*empty)):
        with pytest.raises(BadLoop, match=r"the training data yielded no batch in epoch 1\."):
            runner().fit(data, epochs=1, batch_size=4)


def test_separate_inputs_and_targets_raise_with_the_correct_call(runner):
    with pytest.raises(BadLoop, match=re.escape("fit((X, Y), epochs=..., batch_size=32)")):
        runner().fit(torch.ones(8, 3), torch.ones(8, 2), epochs=1, batch_size=4)


def test_a_single_tensor_raises_with_a_call_that_works(runner):
    x, y, one = torch.ones(8, 3), torch.ones(8, 2), runner()
    calls = {
        one.validate: "validate((X, Y), batch_size=32)",
        one.predict: "predict((X,), batch_size=32)",
        one.predict_iter: "predict((X,), batch_size=32)",
    }
    for method, call in calls.items():
        for data in (x, [x, y]):
            with pytest.raises(BadLoop, match=re.escape(f"the arrays as a tuple: {call}")):
                method(data, batch_size=4)
    assert one.validate((x, y), batch_size=32).keys() == {"val_loss"}
    assert [outputs.shape for outputs in one.predict((x,), batch_size=32)] == [(8, 2)]


@pytest.mark.parametrize(
    ("data", "batch_size", "message"),
    [
        ((torch.ones(2),), None, "a tuple of tensors or arrays needs a batch size.\n  give      batch_size=32"),
        ((torch.ones(2), torch.ones(3)), 1, "the tensors of a dataset must have equal lengths.\n  got       2, 3"),
        (
            (torch.ones(2), [1, 2]),
            1,
            "expected a tuple of tensors or arrays, got list.\n  give      batches as a list, an iterable or a DataLoader",
        ),
        (
            (),
            1,
            "expected a tuple of tensors or arrays, got nothing.\n  give      batches as a list, an iterable or a DataLoader",
        ),
        (
            [1],
            2,
            (
                "the items of a list are used as batches, so batch_size does not apply.\n"
                "  write     torch.utils.data.DataLoader(data, batch_size=32) if the items are samples\n"
                "  drop      batch_size if the items are batches"
            ),
        ),
        (3, None, "3 yields no batches.\n  give      a DataLoader, an iterable of batches, or a tuple of tensors"),
        (None, None, "None yields no batches.\n  give      a DataLoader, an iterable of batches, or a tuple of tensors"),
    ],
)
def test_invalid_data_raises(data, batch_size, message):
    with pytest.raises(BadLoop, match=f"^{re.escape(message)}$"):
        as_loader(data, batch_size, shuffle=False)


# Moving


@pytest.mark.parametrize(
    ("batch", "tensors"),
    [
        (torch.ones(2), lambda moved: [moved]),
        ((torch.ones(2), torch.ones(2)), lambda moved: list(moved)),
        ([torch.ones(2), [torch.ones(2)]], lambda moved: [moved[0], moved[1][0]]),
        ({"x": torch.ones(2), "y": (torch.ones(2),)}, lambda moved: [moved["x"], moved["y"][0]]),
        (OrderedDict(x=torch.ones(2)), lambda moved: [moved["x"]]),
        (defaultdict(list, x=torch.ones(2)), lambda moved: [moved["x"]]),
        (Pair(torch.ones(2), {"z": torch.ones(2)}), lambda moved: [moved.x, moved.y["z"]]),
        (Batch(torch.ones(2), [torch.ones(2)]), lambda moved: [moved.x, moved.y[0]]),
        (ModelOutput(loss=torch.ones(1), logits=torch.ones(2)), lambda moved: [moved.loss, moved["logits"], moved.logits]),
    ],
    ids=["tensor", "tuple", "list", "dict", "ordered dict", "default dict", "named tuple", "dataclass", "model output"],
)
def test_tensors_move_and_their_container_keeps_its_type(batch, tensors):
    moved = move(batch, META)
    assert type(moved) is type(batch)
    assert {tensor.device.type for tensor in tensors(moved)} == {"meta"}
    assert {tensor.device.type for tensor in tensors(batch)} == {"cpu"}


def test_objects_with_a_to_method_move_themselves():
    class Graph:
        def to(self, device):
            return ("moved", device)

    assert move([Graph()], META) == [("moved", META)]
    packed = move(pack_sequence([torch.ones(3), torch.ones(2)]), META)
    assert packed.data.device.type == "meta"
    assert packed.batch_sizes.device.type == "cpu"  # where it must stay


@pytest.mark.parametrize("thing", [3, "text", None, {1, 2}, nn.Linear, np.ones(2)])
def test_objects_other_than_tensors_are_returned_unchanged(thing):
    assert move(thing, META) is thing


def test_move_can_wait_for_a_copy_to_the_cpu():
    batch = {"x": torch.arange(3.0)}
    assert torch.equal(move(batch, torch.device("cpu"), waits=True)["x"], batch["x"])


# Describing


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (torch.ones(2, 3), "float32[2, 3]"),
        (torch.tensor(1), "int64[]"),
        ((torch.ones(2), [torch.ones(2, dtype=torch.bfloat16), "a"]), "(float32[2], (bfloat16[2], str))"),
        ({"x": torch.ones(2), "y": None}, "{x: float32[2], y: NoneType}"),
        (Batch(torch.ones(2)), "{x: float32[2], y: NoneType, both: NoneType}"),
        (ModelOutput(logits=torch.ones(2)), "{logits: float32[2]}"),
        ({}, "{}"),
        (object(), "object"),
    ],
)
def test_a_batch_is_described_by_its_shapes(batch, text):
    assert described(batch) == text
