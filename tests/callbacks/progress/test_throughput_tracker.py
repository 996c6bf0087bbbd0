from __future__ import annotations

import pytest
import torch

from hookpoint import Every
from hookpoint.callbacks import InferenceRunner, ThroughputTracker
from hookpoint.callbacks.progress._lap_timer import TrainingTime
from hookpoint.core.loop.loop import Loop

STEPS, SAMPLES = "Throughput (steps/sec)", "Throughput (samples/sec)"


def measured(*args, clock):
    tracker = ThroughputTracker(*args)
    tracker.time = TrainingTime(clock)
    return tracker


@pytest.fixture
def train_sizes(train_timed):
    """Train with batches of the given sizes."""

    def go(callbacks, *, sizes=(3, 3, 3, 1), **given):
        return train_timed(callbacks, batches=[torch.zeros(size) for size in sizes], log_every=1, **given)

    return go


def test_steps_and_samples_per_second_are_logged_each_epoch(train_sizes, clock):
    run = train_sizes([measured(clock=clock)], epochs=2)
    assert run.monitors.get_history(STEPS) == [(4, 2.0), (8, 2.0)]
    assert run.monitors.get_history(SAMPLES) == [(4, 5.0), (8, 5.0)]


def test_samples_per_step_can_be_given(train_sizes, clock):
    run = train_sizes([measured(32, clock=clock)])
    assert run.metrics[SAMPLES] == 64.0
    assert run.metrics[STEPS] == 2.0


def test_a_schedule_logs_the_rate_since_the_last_trigger(clock):
    with Loop([measured(clock=clock).when(Every(steps=2))], log_every=2) as run:
        seen = []
        for seconds in run.batches([1.0, 1.0, 2.0, 2.0, 9.0]):
            seen += [float(run.metrics[STEPS])] if STEPS in run.metrics else []
            clock.now += seconds
    assert seen == [1.0, 1.0, 0.5]


def test_time_of_validation_and_checkpoints_does_not_count(train_sizes, saves, clock, disk):
    def forward(batch):
        clock.now += 10
        return [batch]

    infer = InferenceRunner([1, 2], metrics={"x": lambda outputs, targets: outputs[0]}, forward=forward).when(Every(steps=3))
    run = train_sizes([measured(clock=clock), infer, saves(2, clock=clock)], epochs=2, store=disk)
    assert run.monitors.get_history(STEPS) == [(4, 2.0), (8, 2.0)]


def test_a_failed_validation_leaves_out_the_rate_of_its_epoch(train_sizes, clock, caplog):
    def forward(batch):
        if clock.now < 1000:
            raise OSError("gone")
        return [batch]

    infer = InferenceRunner([1], metrics={"x": lambda o, t: o[0]}, forward=forward, on_error="warn").when(Every(steps=3))
    run = train_sizes([measured(clock=clock), infer], epochs=2)
    assert run.monitors.get_history(STEPS) == [(8, 2.0)]


def test_a_resumed_epoch_has_the_rate_of_the_whole_epoch(train_sizes, cut_off, saves, clock, disk):
    with pytest.raises(cut_off):
        train_sizes([measured(clock=clock), saves(2, clock=clock)], cut_at=3, seconds=1.0, store=disk)
    clock.now += 5000
    run = train_sizes([measured(clock=clock), saves(99, clock=clock)], seconds=3.0, store=disk)
    assert run.monitors.get_history(STEPS) == [(4, 4 / (1 + 1 + 3 + 3))]
    assert run.monitors.get_history(SAMPLES) == [(4, 10 / 8)]


@pytest.mark.filterwarnings("ignore:this train pass has no batches")
def test_without_a_step_nothing_is_logged(train_sizes, clock):
    run = train_sizes([measured(clock=clock)], sizes=())
    assert STEPS not in run.metrics


def test_an_epoch_cut_short_has_no_rate(clock):
    with Loop([measured(clock=clock)]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(4)):
                clock.now += 1
                break
    assert STEPS not in run.metrics


def test_the_tracker_listens_at_no_point_of_a_step():
    assert Loop([ThroughputTracker()]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "3"])
def test_an_invalid_number_of_samples_raises(samples):
    with pytest.raises(ValueError, match="samples_per_step must be an integer >= 1"):
        ThroughputTracker(samples)
