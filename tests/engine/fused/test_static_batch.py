from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest
import torch

from hookpoint.core.errors import BadData
from hookpoint.engine.fused._static_batch import StaticBatch, is_on_host, signature_of

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


def test_different_batches_have_different_signatures():
    x = torch.zeros(2, 3)
    different = [x, x[:1], x.double(), torch.zeros(3, 2).T, (x,), [x], {"x": x}, {"y": x}, (x, 1), (x, 2), (x, None), Sample(x)]
    assert len({signature_of(batch) for batch in different}) == len(different)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "an object of type object"),
        (torch.eye(2).to_sparse(), "a sparse or nested tensor"),
    ],
)
def test_values_that_cannot_be_captured_raise(value, kind):
    with pytest.raises(BadData) as error:
        signature_of((torch.zeros(2), value))
    expected = (
        f"cuda_graph=True cannot capture a batch with {kind}.\n"
        "  give      dense tensors and numbers, in tuples, lists, dicts or dataclasses"
    )
    assert str(error.value) == expected


@dataclass
class Masked:
    x: torch.Tensor
    mask: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.mask = self.x > 0


def test_fields_that_cannot_be_copied_raise():
    with pytest.raises(BadData) as error:
        signature_of(Masked(torch.zeros(2)))
    expected = (
        "cuda_graph=True cannot capture a batch of Masked: its field 'mask' has init=False.\n"
        "  give      a dataclass with init=True for all fields"
    )
    assert str(error.value) == expected
    with pytest.raises(BadData, match="a batch with an object of type mappingproxy"):
        signature_of(MappingProxyType({"x": torch.zeros(2)}))


def test_tensors_left_on_another_device_raise():
    StaticBatch(torch.zeros(2)).check_device(torch.device("cpu"))
    with pytest.raises(BadData) as error:
        StaticBatch((torch.zeros(2),)).check_device(torch.device("cuda", 0))
    expected = (
        "cuda_graph=True cannot capture a batch that still has a tensor on 'cpu' after it was moved to the GPU.\n"
        "  give      tensors that `batch.to(device)` moves"
    )
    assert str(error.value) == expected


def test_a_copy_keeps_no_gradient_history():
    static = StaticBatch(torch.zeros(2))
    static.batch.requires_grad_()
    static.copy(torch.ones(2, requires_grad=True) * 2)
    assert static.batch.tolist() == [2.0, 2.0]
    assert not static.batch.requires_grad
    static.copy(static.batch)
    assert static.batch.grad_fn is None
