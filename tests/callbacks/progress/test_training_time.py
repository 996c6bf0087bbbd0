from __future__ import annotations

import pytest

from hookpoint.callbacks.progress._training_time import Elapsed, TrainingTime


@pytest.fixture
def time(clock):
    return TrainingTime(clock)


def test_it_runs_in_passes_only(time, clock):
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


def test_a_pause_is_left_out(time, clock):
    time.begin()
    clock.now += 1
    time.pause()
    clock.now += 2
    time.resume()
    clock.now += 4
    time.end()
    assert time.seconds == 5
    assert not time.is_unknown


def test_outside_of_a_pass_nothing_is_paused(time, clock):
    time.pause()
    time.resume()
    clock.now += 1
    assert time.seconds == 0
    assert not time.is_unknown


@pytest.mark.parametrize("next_one", ["end", "pause"])
def test_a_pause_that_never_ended_makes_the_pass_unknown(time, clock, next_one):
    time.begin()
    time.pause()
    clock.now += 1
    getattr(time, next_one)()
    assert time.is_unknown
    time.end()
    time.begin()
    assert not time.is_unknown


def test_what_has_passed_may_be_taken_off(time, clock):
    time.begin()
    clock.now += 8
    time.take_off(3)
    assert time.seconds == 5
    time.end()
    time.take_off(3)
    assert time.seconds == 5


def test_without_a_step_there_is_no_time_per_step():
    assert Elapsed(1.0).seconds_per_step is None
    assert Elapsed(1.0, 4).seconds_per_step == 0.25
