from __future__ import annotations

import threading

import pytest
import torch

from hookpoint.callbacks import GPUUtilizationTracker
from hookpoint.callbacks.system import gpu_utilization_tracker
from hookpoint.core.loop.loop import Loop


class Gpus:
    """Two GPUs whose samples come from the test."""

    def __init__(self):
        self.is_open = False

    def utilization(self):
        raise AssertionError("the thread does not look in this test")

    def close(self):
        self.is_open = False


class Sampler:
    """A sampler that samples when the test calls it."""

    def __init__(self, owner, read, add):
        self.add, self.is_on, self.is_open = add, False, True
        Sampler.last = self

    def turn(self, *, on):
        self.is_on = on

    def close(self):
        self.is_open = False

    @classmethod
    def sample(cls, *percent):
        if cls.last.is_on:
            cls.last.add(dict(enumerate(percent)))


@pytest.fixture
def gpus(monkeypatch):
    gpus = Gpus()

    def open_gpus(owner, devices):
        gpus.is_open, gpus.devices = True, devices
        return gpus

    monkeypatch.setattr(gpu_utilization_tracker, "open_gpus", open_gpus)
    monkeypatch.setattr(gpu_utilization_tracker, "Sampler", Sampler)
    return gpus


@pytest.fixture
def train_sampled(train):
    """Train with these samples, one per step; a sample of zeros follows after the last step of each epoch."""

    def go(callbacks, *, samples=((10, 50), (20, 50), (60, 50)), **given):
        options = {"step": lambda run, sample: Sampler.sample(*sample), "epoch_end": lambda run: Sampler.sample(0, 0)}
        return train(callbacks, batches=samples, **options, **given)

    return go


def test_the_average_of_each_epoch_is_logged(train_sampled, gpus):
    run = train_sampled([GPUUtilizationTracker()], epochs=2)
    assert run.monitors.get_history("GPUUtil/0") == [(3, 30.0), (6, 30.0)]
    assert run.metrics["GPUUtil/1"] == 50.0
    assert not gpus.is_open
    assert not Sampler.last.is_open


def test_validation_and_prediction_do_not_count(gpus):
    with Loop([GPUUtilizationTracker()]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(2)):
                Sampler.sample(80)
                for _ in run.batches(range(2), mode="val"):
                    Sampler.sample(0)
                for _ in run.batches(range(2), mode="pred"):
                    Sampler.sample(0)
                Sampler.sample(60)
            for _ in run.batches(range(2), mode="val"):
                Sampler.sample(0)
    assert run.metrics["GPUUtil/0"] == 70.0


def test_an_epoch_without_a_sample_has_no_value(train_sampled, gpus):
    run = train_sampled([GPUUtilizationTracker()], samples=[()] * 3)
    assert dict(run.metrics) == {}


def test_a_resumed_epoch_has_the_average_of_the_whole_epoch(train_sampled, cut_off, saves, gpus, disk):
    with pytest.raises(cut_off):
        train_sampled([GPUUtilizationTracker(), saves(2)], cut_at=3, store=disk)
    assert not gpus.is_open

    class ReadOver:
        """Data that has to be read again up to the position of the resume, which takes time."""

        def __iter__(self):
            for sample in [(0, 0), (0, 0), (90, 50)]:
                if sample == (0, 0):
                    Sampler.sample(0, 0)
                yield sample

    run = train_sampled([GPUUtilizationTracker(), saves(2)], samples=ReadOver(), store=disk)
    assert run.metrics["GPUUtil/0"] == (10 + 20 + 90) / 3


def test_everything_is_closed_after_an_exception(train_sampled, cut_off, gpus):
    with pytest.raises(cut_off):
        train_sampled([GPUUtilizationTracker()], cut_at=2)
    assert not gpus.is_open
    assert not Sampler.last.is_open


def test_devices_are_passed_on_without_duplicates(train_sampled, gpus):
    train_sampled([GPUUtilizationTracker(devices=[1, 0, 1])])
    assert gpus.devices == (1, 0)
    train_sampled([GPUUtilizationTracker(devices=1)])
    assert gpus.devices == (1,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("devices", [None, [0]])
def test_without_a_gpu_a_warning_is_logged_only_if_devices_are_requested(train_sampled, monkeypatch, caplog, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for _ in range(2):
        run = train_sampled([GPUUtilizationTracker(devices)], samples=[(), ()])
    assert dict(run.metrics) == {}
    assert len(caplog.messages) == (devices is not None)
    assert all(line.startswith("GPUUtilizationTracker does nothing: no GPU found") for line in caplog.messages)
    assert "hookpoint GPUUtilizationTracker" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("devices", [[], [-1], [0.5], ["0"], "0", [True], -1])
def test_invalid_devices_raise(devices):
    with pytest.raises(ValueError, match="devices must be a list of device indices"):
        GPUUtilizationTracker(devices)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_working_gpu_is_busy():
    numbers = torch.rand(4096, 4096, device="cuda")

    def work(seconds):
        began, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        while True:
            for _ in range(20):
                numbers @ numbers
            done.record()
            done.synchronize()
            if began.elapsed_time(done) > 1000 * seconds:
                return

    with Loop([GPUUtilizationTracker()]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(3)):
                work(1.2)
    assert 50 < run.metrics["GPUUtil/0"] <= 100
