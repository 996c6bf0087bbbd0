from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.callbacks.stopping.early_stopping import Patience

INF, NAN = math.inf, math.nan


def end(patience, values):
    """Return at which value it is over, or None."""
    for number, value in enumerate(values, 1):
        patience.take(value, number)
        if patience.is_over:
            return number
    return None


@pytest.mark.parametrize(
    ("options", "values", "over"),
    [
        ({}, [3.0, 2.0, 1.0], None),
        ({}, [3.0, 2.0, 2.0], 3),
        ({"patience": 1}, [3.0, 2.0, 2.0], 3),
        ({"patience": 2}, [3.0, 2.0, 2.0, 1.0, 1.0, 1.0], 6),
        ({"patience": 2}, [3.0, 2.0, 2.5, 2.25], 4),
        ({"min_delta": 0.5}, [3.0, 2.25, 1.5, 1.25], 4),
        ({"min_delta": 0.5}, [3.0, 2.5], 2),
        ({}, [0.0, 0.0], 2),
        ({}, [0.5, 0.0, -0.5], None),
        ({}, [NAN], 1),
        ({"patience": 2}, [NAN, NAN], 2),
        ({"patience": 2}, [NAN, 5.0, NAN, 4.0, NAN, NAN], 6),
        ({}, [INF, INF], 2),
        ({"patience": 2}, [INF, INF, 5.0, 4.0], None),
        ({"patience": 2}, [INF, INF, INF], 3),
        ({"patience": 2}, [NAN, INF, INF, 5.0], None),
        ({"patience": 2}, [5.0, INF, INF], 3),
        ({"patience": 2}, [-INF, -INF, -5.0], 3),
        ({"patience": 2, "min_delta": 0.5}, [INF, INF, 5.0, 4.0], None),
        ({"patience": 2, "baseline": 9.0}, [INF, INF, 5.0], 2),
        ({"patience": 2, "baseline": INF}, [INF, 5.0, 5.0, 4.0], None),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.75, 1.375, 1.0, 0.75], None),  # 1.375 is 0.5 below 2
        ({"baseline": 2.0}, [3.0, 1.0], 1),
        ({"baseline": 2.0}, [1.0, 0.5], None),
        ({"baseline": 2.0, "patience": 3}, [5.0, 4.0, 3.0], 3),  # better and better, and never good enough
        ({"baseline": 2.0, "patience": 3}, [5.0, 4.0, 1.0, 1.0, 1.0, 1.0], 6),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.75, 1.5], 2),
        ({"baseline": 2.0, "min_delta": 0.5, "patience": 2}, [1.25, 1.0, 0.5], None),
    ],
)
def test_when_it_is_over(options, values, over):
    assert end(Patience("min", **options), values) == over
    baseline = {"baseline": -options["baseline"]} if "baseline" in options else {}
    assert end(Patience("max", **{**options, **baseline}), [-value for value in values]) == over


def test_the_best_is_told_whether_or_not_it_is_progress():
    patience = Patience("min", 9, baseline=1.0)
    assert [patience.take(value, step) for step, value in enumerate([3.0, NAN, 2.0, 2.0])] == [True, False, True, False]
    assert (patience.best.value, patience.best.step) == (2.0, 2)


@given(st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.5, 1.0, 2.0, INF])), st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_it_is_over_where_keras_stops(values, patience, min_delta):
    best, wait, stopped = None, 0, None
    for number, value in enumerate(values, 1):  # on_epoch_end of Keras 3
        wait += 1
        if best is None or value + min_delta < best:
            best, wait = value, 0
        elif wait >= patience and number > 1:
            stopped = number
            break
    assert end(Patience("min", patience, min_delta=min_delta), values) == stopped
    assert end(Patience("max", patience, min_delta=min_delta), [-value for value in values]) == stopped


@pytest.mark.parametrize(("baseline", "progress"), [(None, 2.0), (2.5, 2.0), (1.0, None)])
def test_an_older_state_says_nothing_of_the_progress(baseline, progress):
    patience = Patience("min", 3, baseline=baseline)
    patience.load_state_dict({"best": {"value": 2.0, "step": 7}, "waited": 1})
    assert patience.state_dict()["progress"]["value"] == progress
    patience.take(0.5, 8)
    assert patience.waited == 0


@pytest.mark.parametrize("baseline", [None, 1.5])
@pytest.mark.parametrize("cut", range(7))
def test_the_state_is_all_there_is(cut, baseline):
    values = [3.0, 2.0, NAN, 1.0, 1.0, 1.5, 0.5]
    first, second = Patience("min", 3, baseline=baseline), Patience("min", 3, baseline=baseline)
    end(first, values[:cut])
    second.load_state_dict(first.state_dict())
    for number, value in enumerate(values[cut:], cut + 1):
        first.take(value, number), second.take(value, number)
    assert first.state_dict() == second.state_dict()
