from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from hookpoint.core.errors import BadData
from hookpoint.engine.fused.static_batch import StaticBatch, is_on_host, signature_of

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    weight: float = 1.0


def batches(fill):
    tensor = torch.full((2, 3), fill)
    return [
        tensor,
        (tensor, tensor[0]),
        [tensor],
        {"x": tensor, "n": 3},
        OrderedDict(x=tensor),
        Pair(tensor, None),
        Sample(tensor),
    ]


def values(batch):
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: values(value) for key, value in batch.items()}
    if isinstance(batch, Sample):
        return values((batch.x, batch.weight))
    return [values(item) for item in batch] if isinstance(batch, tuple | list) else batch


@pytest.mark.parametrize("number", range(len(batches(0.0))))
def test_a_batch_is_copied_to_the_same_addresses(number):
    first, second = batches(1.0)[number], batches(2.0)[number]
    assert signature_of(first) == signature_of(second)
    static = StaticBatch(first)
    assert type(static.batch) is type(first)
    assert values(static.batch) == values(first)
    same = static.batch
    static.copy(second)
    assert static.batch is same
    assert values(static.batch) == values(second)
    assert values(first) == values(batches(1.0)[number])  # untouched
    assert is_on_host(first)


def test_signatures_tell_batches_apart():
    x = torch.zeros(2, 3)
    different = [x, x[:1], x.double(), torch.zeros(3, 2).T, (x,), [x], {"x": x}, {"y": x}, (x, 1), (x, 2), (x, None), Sample(x)]
    assert len({signature_of(batch) for batch in different}) == len(different)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "an object of object"),
        (torch.eye(2).to_sparse(), "a sparse or nested tensor"),
    ],
)
def test_what_cannot_be_captured_is_refused(value, kind):
    with pytest.raises(BadData) as error:
        signature_of((torch.zeros(2), value))
    expected = (
        f"cuda_graph=True cannot capture a batch with {kind}.\n"
        "  give      dense tensors and numbers, in tuples, lists, dicts or dataclasses"
    )
    assert str(error.value) == expected
