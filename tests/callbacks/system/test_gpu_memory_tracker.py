from __future__ import annotations

import sys

import pytest
import torch

from hookpoint.callbacks import GPUMemoryTracker
from hookpoint.core.errors import BadLoop
from hookpoint.core.loop.loop import Loop


class Allocator:
    """Replaces the counters of PyTorch's allocator, because this machine may have no GPU."""

    def __init__(self):
        self.used, self.peak, self.ready = {0: 0, 1: 0}, {0: 0, 1: 0}, True

    def use(self, device, in_use_bytes):
        self.used[device] = in_use_bytes
        self.peak[device] = max(self.peak[device], in_use_bytes)

    def is_available(self):
        return True

    def is_initialized(self):
        return self.ready

    def device_count(self):
        return 2

    def reset_peak_memory_stats(self, device):
        assert self.ready
        self.peak[device] = self.used[device]

    def max_memory_allocated(self, device):
        return self.peak[device]


@pytest.fixture
def allocator(monkeypatch):
    allocator = Allocator()
    for name in ("is_available", "is_initialized", "device_count", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, getattr(allocator, name))
    return allocator


@pytest.fixture
def train_to_peaks(train):
    """Train two epochs whose steps use the given peaks of memory; the second epoch uses half as much."""

    def go(callbacks, allocator, *, peaks=(3e6, 9e6, 1e6), **given):
        def step(run, peak):
            allocator.use(0, int(peak / run.epoch))
            allocator.use(1, int(peak / run.epoch) + 1000)

        return train(callbacks, epochs=2, batches=peaks, step=step, **given)

    return go


def test_the_peak_of_each_epoch_is_logged(train_to_peaks, allocator):
    run = train_to_peaks([GPUMemoryTracker(devices=[0, 1])], allocator)
    assert run.monitors.get_history("PeakMemory(MB)/gpu:0") == [(3, 9.0), (6, 4.5)]
    assert run.monitors.get_history("PeakMemory(MB)/gpu:1") == [(3, 9.001), (6, 4.501)]


def test_by_default_the_first_device_is_tracked(train_to_peaks, allocator):
    assert set(train_to_peaks([GPUMemoryTracker()], allocator).metrics) == {"PeakMemory(MB)/gpu:0"}


def test_validation_is_part_of_the_epoch(allocator):
    with Loop([GPUMemoryTracker()]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(2)):
                allocator.use(0, 10**6)
            for _ in run.batches(range(2), mode="val"):
                allocator.use(0, 7 * 10**6)
    assert run.metrics["PeakMemory(MB)/gpu:0"] == 7.0


def test_counters_are_not_reset_before_the_gpu_is_initialized(train_to_peaks, allocator):
    allocator.ready = False
    assert train_to_peaks([GPUMemoryTracker()], allocator).metrics["PeakMemory(MB)/gpu:0"] == 9.0


@pytest.mark.parametrize(("rest", "peak"), [(1e6, 9.0), (12e6, 12.0)])
def test_a_resumed_epoch_has_the_highest_peak_of_its_parts(train_to_peaks, cut_off, saves, allocator, disk, rest, peak):
    with pytest.raises(cut_off):
        train_to_peaks([GPUMemoryTracker(), saves(2)], allocator, cut_at=3, store=disk)
    allocator.__init__()
    run = train_to_peaks([GPUMemoryTracker(), saves(2)], allocator, peaks=(0, 0, rest), store=disk)
    assert run.monitors.get_history("PeakMemory(MB)/gpu:0")[0] == (3, peak)


def test_a_device_that_does_not_exist_raises(train_to_peaks, allocator):
    with pytest.raises(BadLoop, match=r"GPUMemoryTracker: devices=\(7,\), but PyTorch sees 2 GPUs.\n +give +numbers below 2"):
        train_to_peaks([GPUMemoryTracker(devices=[7])], allocator)


@pytest.mark.parametrize(("given", "said"), [({}, False), ({"devices": [0]}, True), ({"devices": (0,)}, True)])
def test_without_a_gpu_a_warning_is_logged_only_if_devices_are_requested(train_to_peaks, monkeypatch, caplog, given, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for _ in range(2):
        run = train_to_peaks([GPUMemoryTracker(**given)], Allocator())
    assert dict(run.metrics) == {}
    assert caplog.messages == ["GPUMemoryTracker does nothing: no GPU found"] * said


def test_without_torch_a_warning_is_logged_once(train_to_peaks, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch", None)
    run = train_to_peaks([GPUMemoryTracker()], Allocator())
    assert dict(run.metrics) == {}
    assert caplog.messages == ["GPUMemoryTracker does nothing without torch: pip install 'hookpoint[torch]'"]


@pytest.mark.parametrize("devices", [[], [-1], [0.5], ["0"], "0", [True], -1])
def test_invalid_devices_raise(devices):
    with pytest.raises(ValueError, match="devices must be a list of device indices"):
        GPUMemoryTracker(devices)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_peak_of_the_real_allocator_is_measured():
    with Loop([GPUMemoryTracker()]) as run:
        for epoch in run.epochs(2):
            for _ in run.batches(range(2)):
                torch.zeros(50 * 2**20 // epoch, dtype=torch.uint8, device="cuda")
    (_, first), (_, second) = run.monitors.get_history("PeakMemory(MB)/gpu:0")
    assert first - second == pytest.approx(25 * 2**20 / 1e6)
