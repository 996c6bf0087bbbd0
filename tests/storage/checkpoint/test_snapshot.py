from __future__ import annotations

import numpy as np
import pytest
import torch

from hookpoint.core.errors import NotSaveable
from hookpoint.storage.checkpoint.snapshot import Snapshots


def state():
    weight = torch.arange(6.0).view(2, 3)
    moments = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    return {
        "model": {"w": torch.nn.Parameter(weight), "tied": weight, "empty": torch.empty(0)},
        "moments": moments,
        "array": np.ones(3),
        "plain": {"a": [1, (2, [3])]},
    }


def test_a_snapshot_that_outlives_the_call_does_not_change(same):
    now, before = state(), state()
    taken = Snapshots().take(now, outlives_the_call=True)
    with torch.no_grad():
        now["model"]["w"] += 1
        now["moments"] += 1
    now["array"] += 1
    now["plain"]["a"][1][1].append(4)
    before["model"]["w"] = before["model"]["w"].detach()
    assert same(taken, before)
    assert taken["moments"].stride() == before["moments"].stride()
    assert not taken["model"]["w"].requires_grad


def test_tied_tensors_stay_tied():
    taken = Snapshots().take(state(), outlives_the_call=True)
    assert taken["model"]["w"].data_ptr() == taken["model"]["tied"].data_ptr()


def test_memory_is_reused_if_shapes_and_types_match():
    snapshots, now = Snapshots(), state()
    first = snapshots.take(now, outlives_the_call=True)
    now["moments"] = now["moments"].contiguous()
    with torch.no_grad():
        now["model"]["w"] += 1
    second = snapshots.take(now, outlives_the_call=True)
    assert second["model"]["w"].data_ptr() == first["model"]["w"].data_ptr()
    assert torch.equal(second["model"]["w"], now["model"]["w"])
    assert second["moments"].stride() == now["moments"].stride()


def test_cpu_memory_is_not_copied_if_the_snapshot_does_not_outlive_the_call():
    now = state()
    taken = Snapshots().take(now, outlives_the_call=False)
    assert taken["model"]["w"].data_ptr() == now["model"]["w"].data_ptr()
    assert taken["array"] is now["array"]
    assert taken["plain"] is not now["plain"]


def test_conjugate_and_strided_views_are_resolved(same):
    now = {str(number): torch.full((1000,), number + 2j).conj() for number in range(9)}
    now |= {"wide": torch.tensor(3.0).expand(2, 2), "part": torch.arange(9.0)[::4]}
    for outlives in (True, False):
        taken = Snapshots().take(now, outlives_the_call=outlives)
        assert same(taken, {name: tensor.resolve_conj() for name, tensor in now.items()})


def test_values_that_cannot_be_saved_raise_at_once():
    with pytest.raises(NotSaveable, match=r"^plain\['a'\] is a set_iterator"):
        Snapshots().take({"plain": {"a": iter({1})}}, outlives_the_call=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_copies_from_the_gpu_synchronize_once(monkeypatch, same):
    waits = []
    wait = torch.cuda.Stream.synchronize
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda stream: (waits.append(stream), wait(stream)))
    now = {str(number): torch.full((1000, 1000), float(number), device="cuda") for number in range(20)}
    taken = Snapshots().take(now, outlives_the_call=True)
    assert len(waits) == 1
    for tensor in now.values():
        tensor.zero_()
    assert same(taken, {str(number): torch.full((1000, 1000), float(number)) for number in range(20)})
    assert all(tensor.is_pinned() for tensor in taken.values())


def test_missing_bytes_excludes_the_buffers_of_the_last_snapshot():
    snapshots, state = Snapshots(), {"w": torch.ones(8), "tied": torch.ones(4), "n": 1}
    state["again"] = state["tied"]
    assert snapshots.missing_bytes(state) == 48
    snapshots.take(state, outlives_the_call=True)
    assert snapshots.missing_bytes(state) == 0
    assert snapshots.missing_bytes({**state, "w": torch.ones(9)}) == 36
    assert snapshots.missing_bytes(state, enough=65) == 64  # 32 + 16 + 16, without looking for tied tensors
    assert snapshots.missing_bytes(state, enough=64) == 0


def test_missing_bytes_handles_a_state_that_contains_itself():
    state = {"w": torch.ones(8), "list": []}
    state["list"] += [state["list"], state["list"], torch.ones(2)]
    assert Snapshots().missing_bytes(state) == 32
