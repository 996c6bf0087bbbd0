from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint.callbacks._shared.async_scalars import MAX_PENDING, AsyncScalars, is_on_host


class Distant:
    """A value on a device that cannot be polled for completion: reads are counted."""

    reads = 0

    def __init__(self, value):
        self.value = value

    def __float__(self):
        Distant.reads += 1
        return float(self.value)


@pytest.fixture(autouse=True)
def unread():
    Distant.reads = 0


@pytest.mark.parametrize("value", [0.5, 1, torch.tensor(0.5), torch.tensor([0.5]), numpy.float32(0.5), numpy.array(0.5)])
def test_values_on_the_host_are_available_at_once(value):
    late = AsyncScalars()
    late.add("tag", value)
    assert is_on_host(value)
    assert late.take() == [("tag", float(value))]
    assert late.take() == []


def test_device_values_are_not_read_early():
    late = AsyncScalars()
    for number in range(MAX_PENDING * 2):
        late.add(number, Distant(number))
        assert late.take() == []
    assert Distant.reads == 0


def test_the_oldest_values_are_read_when_too_many_are_pending():
    late = AsyncScalars()
    found = []
    for number in range(MAX_PENDING * 4):
        late.add(number, Distant(number))
        found += late.take()
    assert found == [(number, float(number)) for number in range(MAX_PENDING * 2)]


def test_waiting_returns_all_values_in_order():
    late = AsyncScalars()
    for number in range(MAX_PENDING + 3):
        late.add(number, Distant(number) if number % 2 else number)
    assert late.take(wait=True) == [(number, float(number)) for number in range(MAX_PENDING + 3)]
    assert late.take(wait=True) == []


def test_host_values_do_not_overtake_device_values():
    late = AsyncScalars()
    late.add("first", Distant(1))
    late.add("second", 2.0)
    assert late.take() == []
    assert late.take(wait=True) == [("first", 1.0), ("second", 2.0)]


def test_cleared_values_are_not_returned():
    late = AsyncScalars()
    late.add("host", 1.0)
    late.add("device", Distant(1))
    late.start()
    late.add("device", Distant(2))
    late.clear()
    assert late.take(wait=True) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_values_on_a_gpu_are_read_without_synchronizing():
    late = AsyncScalars()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = []
        for number in range(MAX_PENDING * 4):
            late.add(number, torch.full((), float(number), device="cuda"))
            found += late.take()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += late.take(wait=True)
    assert found == [(number, float(number)) for number in range(MAX_PENDING * 4)]
