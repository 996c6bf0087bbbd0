from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Every
from hookpoint.callbacks import InferenceRunner, ThroughputTracker
from hookpoint.callbacks.training_time import TrainingTime
from hookpoint.core.loop import Loop

STEPS, SAMPLES = "Throughput (steps/sec)", "Throughput (samples/sec)"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Cut(Exception):
    """The run is cut off."""


class Saves(Callback):
    saves = True

    def __init__(self, at, clock):
        self.at, self.clock = at, clock

    def on_train_iter_end(self, run):
        if run.step == self.at:
            run.save("mine")

    def state_dict(self):
        self.clock.now += 50
        return {}


def measured(*args, clock):
    tracker = ThroughputTracker(*args)
    tracker.time = TrainingTime(clock)
    return tracker


def train(callbacks, clock, *, epochs=1, sizes=(3, 3, 3, 1), seconds=0.5, cut_at=None, **given):
    with Loop(callbacks, log_every=1, **given) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches([torch.zeros(size) for size in sizes]):
                clock.now += seconds
                if run.current_iteration == cut_at:
                    raise Cut
            clock.now += 1000
    return run


@pytest.fixture
def clock():
    return Clock()


def test_steps_and_samples_of_each_epoch(clock):
    run = train([measured(clock=clock)], clock, epochs=2)
    assert run.monitors.get_history(STEPS) == [(4, 2.0), (8, 2.0)]
    assert run.monitors.get_history(SAMPLES) == [(4, 5.0), (8, 5.0)]


def test_samples_may_be_said(clock):
    run = train([measured(32, clock=clock)], clock)
    assert run.metrics[SAMPLES] == 64.0
    assert run.metrics[STEPS] == 2.0


def test_a_schedule_gives_the_rate_since_the_last_time(clock):
    with Loop([measured(clock=clock).when(Every(steps=2))], log_every=2) as run:
        seen = []
        for seconds in run.batches([1.0, 1.0, 2.0, 2.0, 9.0]):
            seen += [float(run.metrics[STEPS])] if STEPS in run.metrics else []
            clock.now += seconds
    assert seen == [1.0, 1.0, 0.5]


def test_validation_and_checkpoints_are_left_out(clock, disk):
    def forward(batch):
        clock.now += 10
        return [batch]

    infer = InferenceRunner([1, 2], metrics={"x": lambda outputs, targets: outputs[0]}, forward=forward).when(Every(steps=3))
    run = train([measured(clock=clock), infer, Saves(2, clock)], clock, epochs=2, store=disk)
    assert run.monitors.get_history(STEPS) == [(4, 2.0), (8, 2.0)]


def test_a_failed_validation_leaves_one_rate_out(clock, caplog):
    def forward(batch):
        if clock.now < 1000:
            raise OSError("gone")
        return [batch]

    infer = InferenceRunner([1], metrics={"x": lambda o, t: o[0]}, forward=forward, on_error="warn").when(Every(steps=3))
    run = train([measured(clock=clock), infer], clock, epochs=2)
    assert run.monitors.get_history(STEPS) == [(8, 2.0)]


def test_a_resumed_epoch_has_the_rate_of_the_whole(clock, disk):
    with pytest.raises(Cut):
        train([measured(clock=clock), Saves(2, clock)], clock, cut_at=3, seconds=1.0, store=disk)
    clock.now += 5000
    run = train([measured(clock=clock), Saves(99, clock)], clock, seconds=3.0, store=disk)
    assert run.monitors.get_history(STEPS) == [(4, 4 / (1 + 1 + 3 + 3))]
    assert run.monitors.get_history(SAMPLES) == [(4, 10 / 8)]


def test_without_a_step_nothing_is_logged(clock):
    run = train([measured(clock=clock)], clock, sizes=())
    assert STEPS not in run.metrics


def test_an_epoch_cut_short_has_no_rate(clock):
    with Loop([measured(clock=clock)]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(4)):
                clock.now += 1
                break
    assert STEPS not in run.metrics


def test_a_step_does_not_call_it():
    assert Loop([ThroughputTracker()]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None


@pytest.mark.parametrize("samples", [0, -1, 1.5, True, "3"])
def test_mistakes_are_refused(samples):
    with pytest.raises(ValueError, match="means nothing"):
        ThroughputTracker(samples)
