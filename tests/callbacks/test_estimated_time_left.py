from __future__ import annotations

import pytest

from hookpoint import Callback
from hookpoint.callbacks import EstimatedTimeLeft
from hookpoint.core import clocks
from hookpoint.core.loop import Loop


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Cut(Exception):
    """The run is cut off."""


class Saves(Callback):
    saves = True

    def on_train_iter_end(self, run):
        run.save("mine")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(clocks, "perf_counter", clock)
    return clock


def train(callbacks, clock, seconds, *, epochs=None, cut_at=None, leave_in=None, **given):
    """Train epochs of two batches, each of which takes as many seconds as it says."""
    with Loop(callbacks, **given) as run:
        for epoch in run.epochs(len(seconds) if epochs is None else epochs):
            for _ in run.batches(range(2)):
                clock.now += seconds[epoch - 1] / 2
                if run.current_iteration == cut_at:
                    raise Cut
                if epoch == leave_in:
                    break
    return run


def left(run):
    return [value for _, value in run.monitors.get_history("time_left_seconds")]


def test_what_is_left_by_the_median(clock, capsys):
    run = train([EstimatedTimeLeft()], clock, [10, 20, 90, 20, 20])
    assert left(run) == [40.0, 45.0, 40.0, 20.0]
    assert capsys.readouterr().err.splitlines() == [f"Estimated Time Left: {time}" for time in ("0:40", "0:45", "0:40", "0:20")]


def test_or_by_the_mean(clock):
    assert left(train([EstimatedTimeLeft(median=False)], clock, [10, 20, 90, 20])) == [30.0, 30.0, 40.0]


def test_only_the_last_epochs_count(clock):
    assert left(train([EstimatedTimeLeft(last_k_epochs=1)], clock, [10, 20, 90, 20])) == [30.0, 40.0, 90.0]


def test_what_comes_between_epochs_counts(clock):
    class Takes(Callback):
        def on_epoch_end(self):
            clock.now += 5

    assert left(train([Takes(), EstimatedTimeLeft()], clock, [10, 10])) == [15.0]


def test_an_epoch_cut_short_does_not_count(clock):
    assert left(train([EstimatedTimeLeft()], clock, [10, 60, 10], leave_in=2)) == [20.0, 10.0]


def test_without_an_end_nothing_is_said(clock, capsys):
    with Loop([EstimatedTimeLeft()]) as run:
        for epoch in run.epochs():
            clock.now += 1
            if epoch == 3:
                run.stop("enough")
    assert "time_left_seconds" not in run.metrics
    assert capsys.readouterr().err == ""


def test_of_a_resumed_epoch_both_parts_count(clock, disk):
    with pytest.raises(Cut):
        train([EstimatedTimeLeft(), Saves()], clock, [10, 20, 30], cut_at=4, store=disk)
    clock.now += 5000
    run = train([EstimatedTimeLeft(), Saves()], clock, [10, 40, 30], store=disk)
    assert left(run)[1:] == [(10 + (10 + 20)) / 2]


def test_where_it_is_new_in_a_resumed_run_the_rest_of_the_epoch_does_not_count(clock, disk):
    with pytest.raises(Cut):
        train([Saves()], clock, [10, 20, 30, 40], cut_at=4, store=disk)
    assert left(train([EstimatedTimeLeft(), Saves()], clock, [10, 20, 30, 40], store=disk)) == [30.0]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_mistakes_are_refused(number):
    with pytest.raises(ValueError, match="means nothing"):
        EstimatedTimeLeft(number)
