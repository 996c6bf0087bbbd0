"""A lap covers the work since its start, also across a resume. Only training time counts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hookpoint.callbacks.progress._lap_timer import Elapsed, LapTimer, TrainingTime


@pytest.fixture
def timer(clock):
    timer = LapTimer("lap")
    timer.time = TrainingTime(clock)
    return timer


def run_at(step, samples, *, resuming=False):
    return SimpleNamespace(step=step, samples=samples, resuming=resuming, device=None, iteration=step)


def train(timer, clock, run, *, seconds, steps, samples):
    timer.on_train_epoch_begin(run)
    clock.now += seconds
    run.step += steps
    run.samples += samples
    timer.on_train_epoch_end(run)


def test_a_lap_covers_the_work_since_its_start(timer, clock):
    run = run_at(100, 400)
    timer.on_run_begin(run)
    train(timer, clock, run, seconds=2.5, steps=10, samples=40)
    assert timer.elapsed("lap") == Elapsed(2.5, 10, 40)
    timer.start("lap")
    assert timer.elapsed("lap") == Elapsed()


def test_a_resumed_lap_continues_from_the_checkpoint(timer, clock):
    run = run_at(100, 400, resuming=True)
    timer.on_run_begin(run)
    timer.load_state_dict({"seconds": {"lap": 5.0}, "steps": {"lap": 7}, "samples": {"lap": 9}})
    train(timer, clock, run, seconds=1.0, steps=1, samples=4)
    assert timer.elapsed("lap") == Elapsed(6.0, 8, 13)


def test_a_lap_survives_the_end_of_its_run(timer, clock):
    run = run_at(1, 1)
    timer.on_run_begin(run)
    train(timer, clock, run, seconds=2.0, steps=3, samples=4)
    timer.on_run_end()
    assert timer.elapsed("lap") == Elapsed(2.0, 3, 4)


def test_a_resumed_run_without_saved_state_starts_a_new_lap(timer, clock):
    run = run_at(1, 1)
    timer.on_run_begin(run)
    train(timer, clock, run, seconds=1.0, steps=1, samples=1)
    run.resuming = True
    timer.on_run_begin(run)
    train(timer, clock, run, seconds=2.0, steps=3, samples=4)
    assert timer.elapsed("lap") == Elapsed(2.0, 3, 4)


# TrainingTime


@pytest.fixture
def time(clock):
    return TrainingTime(clock)


def test_time_passes_only_within_a_pass(time, clock):
    clock.now += 1
    assert time.seconds == 0
    time.begin()
    clock.now += 2
    assert time.seconds == 2
    time.end()
    clock.now += 4
    assert time.seconds == 2
    time.begin()
    clock.now += 8
    assert time.seconds == 10


def test_a_pause_does_not_count(time, clock):
    time.begin()
    clock.now += 1
    time.pause()
    clock.now += 2
    time.resume()
    clock.now += 4
    time.end()
    assert time.seconds == 5
    assert not time.is_unknown


def test_a_pause_outside_a_pass_has_no_effect(time, clock):
    time.pause()
    time.resume()
    clock.now += 1
    assert time.seconds == 0
    assert not time.is_unknown


@pytest.mark.parametrize("next_one", ["end", "pause"])
def test_a_pause_that_never_ends_makes_the_pass_unknown(time, clock, next_one):
    time.begin()
    time.pause()
    clock.now += 1
    getattr(time, next_one)()
    assert time.is_unknown
    time.end()
    time.begin()
    assert not time.is_unknown


def test_time_can_be_subtracted_during_a_pass(time, clock):
    time.begin()
    clock.now += 8
    time.subtract(3)
    assert time.seconds == 5
    time.end()
    time.subtract(3)
    assert time.seconds == 5


def test_without_a_step_there_is_no_time_per_step():
    assert Elapsed(1.0).seconds_per_step is None
    assert Elapsed(1.0, 4).seconds_per_step == 0.25
