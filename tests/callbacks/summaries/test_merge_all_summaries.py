from __future__ import annotations

import pytest
import torch

from hookpoint import Every
from hookpoint.callbacks import MergeAllSummaries
from hookpoint.core.errors import BadValue
from hookpoint.core.loop.loop import Loop


@pytest.fixture
def train_with(recorder):
    """Train with these summaries; return the run and the rows that a monitor received."""

    def go(callback, *, epochs=2, batches=4, **summaries):
        monitor = recorder()
        with Loop([callback, monitor], log_every=2) as run:
            for name, function in summaries.items():
                run.summary(name, function)
            for _ in run.epochs(epochs):
                for _ in run.batches(range(batches)):
                    pass
        return run, monitor.rows

    return go


def test_each_summary_is_computed_at_the_end_of_each_epoch(train_with):
    numbers = iter(range(100))
    run, rows = train_with(MergeAllSummaries(), count=lambda: next(numbers), fixed=lambda: 0.5)
    assert rows == [("value", 4, {"count": 0.0, "fixed": 0.5}), ("value", 8, {"count": 1.0, "fixed": 0.5})]
    assert run.monitors.get_history("count") == [(4, 0.0), (8, 1.0)]


def test_a_period_adds_steps(train_with):
    called = []
    _, rows = train_with(MergeAllSummaries(period=3), epochs=1, batches=7, count=lambda: called.append(1) or len(called))
    assert len(called) == 3
    assert rows == [
        ("value", 3, {"count": 1.0}),
        ("value", 6, {"count": 2.0}),
        ("value", 7, {"count": 3.0}),
    ]


def test_a_schedule_replaces_epochs_and_the_period(train_with):
    called = []
    train_with(MergeAllSummaries(period=3).when(Every(epochs=2)), epochs=4, count=lambda: called.append(1) or 1)
    assert len(called) == 2


def test_an_epoch_cut_short_has_no_summaries():
    with Loop([MergeAllSummaries()]) as run:
        run.summary("x", lambda: 1.0)
        for _ in run.epochs(1):
            for _ in run.batches(range(4)):
                break
    assert "x" not in run.metrics


def test_a_summary_can_be_a_tensor(train_with):
    run, _ = train_with(MergeAllSummaries(), norm=lambda: torch.ones(4).norm())
    assert run.metrics["norm"] == 2.0


def test_a_summary_that_returns_none_is_not_logged(train_with):
    run, rows = train_with(MergeAllSummaries(), weights=lambda: None)
    assert rows == []
    assert "weights" not in run.metrics


def test_the_error_for_a_summary_that_is_not_a_scalar_names_it(train_with):
    with pytest.raises(BadValue, match=r"'weights' has shape \(3,\)"):
        train_with(MergeAllSummaries(), weights=lambda: torch.ones(3))


def test_without_summaries_nothing_is_logged(train_with):
    assert train_with(MergeAllSummaries(period=1))[1] == []


def test_a_summary_can_register_another_summary():
    with Loop([MergeAllSummaries()]) as run:
        run.summary("first", lambda: run.summary("second", lambda: 2.0) or 1.0)
        for _ in run.epochs(2):
            for _ in run.batches(range(2)):
                pass
    assert dict(run.metrics) == {"first": 1.0, "second": 2.0}


@pytest.mark.parametrize("period", [-1, 1.5, "3"])
def test_an_invalid_period_raises(period):
    with pytest.raises(ValueError, match=r"MergeAllSummaries.*period"):
        MergeAllSummaries(period=period)


def test_without_a_period_the_callback_listens_at_no_point_of_a_step():
    assert Loop([MergeAllSummaries()]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None
