from __future__ import annotations

import pytest

from hookpoint.callbacks.progress._training_time import Done, Lap, TrainingTime


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
    time.go_on()
    clock.now += 4
    time.end()
    assert time.seconds == 5
    assert not time.is_unknown


def test_outside_of_a_pass_nothing_is_paused(time, clock):
    time.pause()
    time.go_on()
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


def test_a_lap_is_what_was_done_since():
    lap = Lap()
    lap.begin(Done(10.0, 100, 400))
    assert lap.done(Done(12.5, 110, 440)) == Done(2.5, 10, 40)
    lap.begin(Done(12.5, 110, 440))
    assert lap.done(Done(12.5, 110, 440)) == Done()


def test_a_lap_goes_on_with_what_was_kept():
    lap = Lap()
    lap.begin(Done(1.0, 2, 3))
    lap.go_on(Done(10.0, 100, 400), Done(5.0, 7, 9))
    assert lap.done(Done(11.0, 101, 404)) == Done(6.0, 8, 13)


def test_a_lap_that_was_stopped_keeps_what_was_done():
    lap = Lap()
    lap.begin(Done(1.0, 1, 1))
    lap.stop(Done(3.0, 4, 5))
    assert lap.done(Done(9.0, 9, 9)) == Done(2.0, 3, 4)
    lap.go_on(Done(20.0, 20, 20))
    assert lap.done(Done(21.0, 21, 21)) == Done(3.0, 4, 5)


def test_a_lap_that_runs_is_not_disturbed():
    lap = Lap()
    lap.begin(Done(1.0, 1, 1))
    lap.go_on(Done(2.0, 2, 2))
    assert lap.done(Done(3.0, 3, 3)) == Done(2.0, 2, 2)


def test_without_a_step_there_is_no_time_per_step():
    assert Done(1.0).seconds_per_step is None
    assert Done(1.0, 4).seconds_per_step == 0.25
