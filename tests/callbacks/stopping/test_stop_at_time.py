from __future__ import annotations

import datetime
import time
from functools import partial

import pytest

from hookpoint.callbacks import ModelSaver, StopAtTime
from hookpoint.callbacks.stopping import stop_at_time
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule import clocks


@pytest.fixture
def clock(clock, monkeypatch):
    """A clock for both the time of day and the training time."""
    clock.now = 1000.0
    monkeypatch.setattr(clocks, "perf_counter", clock)
    monkeypatch.setattr(stop_at_time.time, "time", clock)
    return clock


@pytest.fixture
def train_by_tens(train, clock):
    """Train two epochs of ten steps that take ten seconds each."""

    def step(run, batch):
        clock.now += 10.0

    return partial(train, epochs=2, batches=10, step=step)


@pytest.mark.parametrize(
    ("callback", "steps"),
    [
        (StopAtTime(1), 6),
        (StopAtTime(run_time=0.5), 3),
        (StopAtTime(seconds=45), 5),
        (StopAtTime(1, seconds=30), 9),
        (StopAtTime(hours=0.025), 9),
        (StopAtTime(60), 20),
        (StopAtTime(datetime.timedelta(seconds=45)), 5),
        (StopAtTime(datetime.timedelta(minutes=1), seconds=30), 9),
        (StopAtTime(0), 0),
    ],
)
def test_the_run_stops_when_the_time_is_over(train_by_tens, callback, steps):
    assert train_by_tens([callback]).step == steps


@pytest.mark.parametrize(("seconds", "epoch", "reason"), [(25, 3, "StopAtTime: reached 25 seconds of training"), (45, 5, "")])
def test_a_run_without_batches_stops_at_the_end_of_an_epoch(clock, seconds, epoch, reason):
    with Loop([StopAtTime(seconds=seconds)]) as run:
        for _ in run.epochs(5):
            clock.now += 10.0
    assert run.epoch == epoch
    assert run._verdicts.reason == reason


def test_training_time_counts_across_a_resume(train_by_tens, clock, disk):
    assert train_by_tens([StopAtTime(seconds=50), ModelSaver()], store=disk).step == 5
    clock.now += 10_000
    assert train_by_tens([StopAtTime(seconds=120), ModelSaver()], store=disk).step == 12


def test_a_resumed_run_with_no_time_left_stops_at_once(train_by_tens, disk):
    for _ in range(2):
        assert train_by_tens([StopAtTime(seconds=50), ModelSaver()], store=disk).step == 5


def test_the_run_stops_at_a_time_of_day(train_by_tens, clock):
    moment = datetime.datetime.fromtimestamp(1035.0)
    assert train_by_tens([StopAtTime(until=moment)]).step == 4
    clock.now = 1000.0
    assert train_by_tens([StopAtTime(until=moment.isoformat(" "))]).step == 4
    clock.now = 1000.0
    aware = datetime.datetime.fromtimestamp(1035.0, tz=datetime.timezone(datetime.timedelta(hours=5)))
    assert train_by_tens([StopAtTime(until=aware.isoformat())]).step == 4
    assert train_by_tens([StopAtTime(until=aware)]).step == 0


def test_the_run_stops_at_whichever_limit_comes_first(train_by_tens, clock):
    until = datetime.datetime.fromtimestamp(1035.0)
    assert train_by_tens([StopAtTime(seconds=20, until=until)]).step == 2
    clock.now = 1000.0
    assert train_by_tens([StopAtTime(seconds=200, until=until)]).step == 4


def test_the_real_clock_is_used():
    with Loop([StopAtTime(seconds=0.05)]) as run:
        for _ in run.batches(range(1000)):
            time.sleep(0.01)
    assert run.step < 100


def test_the_reason_contains_the_limit(train_by_tens):
    run = train_by_tens([StopAtTime(seconds=30)])
    assert run._verdicts.reason == "StopAtTime: reached 30 seconds of training"
    run = train_by_tens([StopAtTime(until=datetime.datetime(1970, 1, 1), name="mine")])
    assert run._verdicts.reason == "mine: it is 1970-01-01 00:00:00"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "needs a time"),
        ({"run_time": -1}, "run_time must be a finite number >= 0, got -1"),
        ({"seconds": float("nan")}, "seconds must be a finite number >= 0, got nan"),
        ({"hours": "8"}, "hours must be a finite number >= 0, got '8'"),
        ({"until": "tomorrow"}, "until must be a time, got 'tomorrow'"),
        ({"until": 5}, "until must be a time, got 5"),
    ],
)
def test_invalid_arguments_raise(given, says):
    with pytest.raises(ValueError, match=says):
        StopAtTime(**given)
