from __future__ import annotations

import pytest

from hookpoint import Callback
from hookpoint.callbacks import EstimatedTimeLeft
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule import clocks


@pytest.fixture
def clock(clock, monkeypatch):
    monkeypatch.setattr(clocks, "perf_counter", clock)
    return clock


@pytest.fixture
def train_seconds(train, clock):
    """Train epochs of two batches that take the given number of seconds each."""

    def go(callbacks, seconds, **given):
        def step(run, batch):
            clock.now += seconds[run.epoch - 1] / 2

        return train(callbacks, epochs=len(seconds), batches=2, step=step, **given)

    return go


def left(run):
    return [value for _, value in run.monitors.get_history("time_left_seconds")]


def test_the_time_left_is_based_on_the_median_epoch(train_seconds, clock, capsys):
    run = train_seconds([EstimatedTimeLeft()], [10, 20, 90, 20, 20])
    assert left(run) == [40.0, 45.0, 40.0, 20.0]
    assert capsys.readouterr().err.splitlines() == [f"Estimated Time Left: {time}" for time in ("0:40", "0:45", "0:40", "0:20")]


def test_the_mean_can_be_used_instead_of_the_median(train_seconds, clock):
    assert left(train_seconds([EstimatedTimeLeft(median=False)], [10, 20, 90, 20])) == [30.0, 30.0, 40.0]


def test_only_the_last_k_epochs_count(train_seconds, clock):
    assert left(train_seconds([EstimatedTimeLeft(last_k_epochs=1)], [10, 20, 90, 20])) == [30.0, 40.0, 90.0]


def test_time_between_epochs_counts(train_seconds, clock):
    class Takes(Callback):
        def on_epoch_end(self):
            clock.now += 5

    assert left(train_seconds([Takes(), EstimatedTimeLeft()], [10, 10])) == [15.0]


def test_an_epoch_cut_short_does_not_count(clock):
    with Loop([EstimatedTimeLeft()]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches(range(2)):
                clock.now += 30 if epoch == 2 else 5
                if epoch == 2:
                    break
    assert left(run) == [20.0, 10.0]


def test_without_a_number_of_epochs_nothing_is_logged(clock, capsys):
    with Loop([EstimatedTimeLeft()]) as run:
        for epoch in run.epochs():
            clock.now += 1
            if epoch == 3:
                run.stop("enough")
    assert "time_left_seconds" not in run.metrics
    assert capsys.readouterr().err == ""


def test_both_parts_of_a_resumed_epoch_count(train_seconds, cut_off, saves, clock, disk):
    with pytest.raises(cut_off):
        train_seconds([EstimatedTimeLeft(), saves()], [10, 20, 30], cut_at=4, store=disk)
    clock.now += 5000
    run = train_seconds([EstimatedTimeLeft(), saves()], [10, 40, 30], store=disk)
    assert left(run)[1:] == [(10 + (10 + 20)) / 2]


def test_a_callback_added_to_a_resumed_run_ignores_the_rest_of_the_epoch(train_seconds, cut_off, saves, clock, disk):
    with pytest.raises(cut_off):
        train_seconds([saves()], [10, 20, 30, 40], cut_at=4, store=disk)
    assert left(train_seconds([EstimatedTimeLeft(), saves()], [10, 20, 30, 40], store=disk)) == [30.0]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "3"])
def test_an_invalid_number_of_epochs_raises(number):
    with pytest.raises(ValueError, match="last_k_epochs must be an integer >= 1"):
        EstimatedTimeLeft(number)
