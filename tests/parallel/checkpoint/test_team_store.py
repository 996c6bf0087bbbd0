from __future__ import annotations

from collections import OrderedDict

import pytest

from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder, has_placeholder

torch = pytest.importorskip("torch")


@pytest.fixture
def sharded():
    """Return a function that shards a tensor over this one process."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    try:
        yield lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])
    finally:
        dist.destroy_process_group()


def taken(state, **options):
    from hookpoint.parallel.checkpoint.team_store import SplitDTensors

    return SplitDTensors(state, **options)


def test_a_state_without_dtensors_is_returned_unchanged():
    state = {"parts": {"model": {"weight": torch.ones(2)}}, "list": [1, (2, 3)]}
    found = taken(state)
    assert found.rest is state
    assert not found.tensors
    assert not has_placeholder(found.rest)


def test_sharded_tensors_are_replaced_by_placeholders_with_their_paths(sharded):
    weight, other = sharded(torch.ones(2, 2)), sharded(torch.zeros(0, 2))
    model = OrderedDict({"a.b": weight, "tied": weight.detach(), "buffer": torch.ones(1)})
    model._metadata = {"": {"version": 1}}
    found = taken({"parts": {"model": model, "model.a": {"b": other}}, "list": [0, {"x": other.detach()}]})
    kept = found.rest["parts"]["model"]
    assert type(kept) is OrderedDict
    assert kept._metadata == model._metadata
    assert list(kept.items())[:2] == [
        ("a.b", ShardedPlaceholder("parts.model.a.b")),
        ("tied", ShardedPlaceholder("parts.model.a.b")),
    ]
    assert kept["buffer"] is model["buffer"]
    assert found.rest["parts"]["model.a"]["b"] == found.rest["list"][1]["x"] == ShardedPlaceholder("parts.model.a.b'")
    assert list(found.tensors) == ["parts.model.a.b", "parts.model.a.b'"]
    assert has_placeholder(found.rest)


def test_tensors_sharded_over_fewer_than_min_ranks_are_gathered(sharded):
    found = taken({"x": sharded(torch.arange(3))}, min_ranks=2)
    assert not found.tensors
    assert torch.equal(found.rest["x"], torch.arange(3))
    assert type(found.rest["x"]) is torch.Tensor


def test_partial_sums_are_made_full_tensors(sharded):
    from torch.distributed.tensor import DTensor, Partial

    given = DTensor.from_local(torch.arange(3), sharded(torch.ones(1)).device_mesh, [Partial()])
    assert torch.equal(taken({"x": given}).rest["x"], torch.arange(3))
