from __future__ import annotations

import math

import pytest

from hookpoint.callbacks.patience import Patience

NAN = math.nan


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


@pytest.mark.parametrize("cut", range(7))
def test_the_state_is_all_there_is(cut):
    values = [3.0, 2.0, NAN, 1.0, 1.0, 1.5, 0.5]
    first, second = Patience("min", 3), Patience("min", 3)
    end(first, values[:cut])
    second.load_state_dict(first.state_dict())
    for number, value in enumerate(values[cut:], cut + 1):
        first.take(value, number), second.take(value, number)
    assert first.state_dict() == second.state_dict()
