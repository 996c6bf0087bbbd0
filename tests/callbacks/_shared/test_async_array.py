from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint.callbacks._shared.async_array import AsyncArray, snapshot


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_an_async_array_keeps_the_values_it_was_made_from(dtype):
    tensor = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    late = AsyncArray(tensor)
    tensor.zero_()
    assert numpy.asarray(late).tolist() == [[1, 0], [1, 1]]


def test_an_async_array_converts_to_float():
    assert float(AsyncArray(torch.tensor(0.5))) == 0.5
    assert float(AsyncArray(torch.tensor([0.5], dtype=torch.bfloat16))) == 0.5


def test_numpy_can_convert_an_async_array_to_another_dtype():
    assert numpy.asarray(AsyncArray(torch.tensor([1, 2])), dtype="float32").dtype == "float32"


def test_the_copy_does_not_require_grad():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not AsyncArray(parameter * 2)._copy.requires_grad


def test_a_sparse_tensor_is_read_as_its_values():
    embedding = torch.nn.Embedding(100, 2, sparse=True)
    embedding(torch.tensor([3, 7])).sum().backward()
    assert numpy.asarray(AsyncArray(embedding.weight.grad)).tolist() == [[1, 1], [1, 1]]


def test_a_sharded_tensor_is_read_as_its_local_shard():
    class Sharded:
        is_sparse = False

        def detach(self):
            return self

        def to_local(self):
            return torch.tensor([1.0, 2.0])

    assert numpy.asarray(AsyncArray(Sharded())).tolist() == [1.0, 2.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_gpu_is_not_synchronized_until_the_array_is_read():
    tensor = torch.rand(1000, 1000, device="cuda").to(torch.bfloat16)
    before = tensor.float().cpu().numpy()
    torch.cuda.set_sync_debug_mode("error")
    try:
        late, flipped = AsyncArray(tensor), AsyncArray(tensor.t())
        tensor.zero_()
        assert (numpy.asarray(late) == before).all()
        assert (numpy.asarray(flipped) == before.T).all()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_dtypes_unknown_to_numpy_are_converted_to_float32(dtype):
    array = numpy.asarray(AsyncArray(torch.tensor([0.5, 2.0]).to(dtype)))
    assert array.dtype == "float32"
    assert array.tolist() == [0.5, 2.0]


def test_a_conjugated_tensor_keeps_its_values():
    assert numpy.asarray(AsyncArray(torch.tensor([1 + 2j]).conj())).tolist() == [1 - 2j]


def test_an_array_of_a_host_tensor_is_ready_at_once():
    assert AsyncArray(torch.ones(2)).is_ready


@pytest.mark.parametrize("value", [torch.ones(2), numpy.ones(2), [1.0, 1.0]])
def test_a_snapshot_does_not_change_with_its_source(value):
    late = snapshot(value)
    value[0] = 5
    assert numpy.asarray(late).tolist() == [1, 1]
