from __future__ import annotations

import math

import pytest

from hookpoint.callbacks.hyper_params.stat_monitor_param_setter import Stagnation

NAN = math.nan


def stands(stagnation, values):
    return [number for number, value in enumerate(values, 1) if stagnation.take(value)]


@pytest.mark.parametrize(
    ("values", "threshold", "last_k", "reverse", "found"),
    [
        ([9, 8, 7, 6, 5, 4], 0.0, 3, False, []),
        ([5, 5, 5, 5, 5, 5], 0.0, 3, False, [3, 6]),  # after a find it starts anew
        ([5, 6, 4, 5, 5], 0.0, 3, False, [5]),
        ([9, 8.75, 8.5, 8.25], 0.5, 3, False, [3]),  # by 0.5, which is not more than 0.5
        ([9, 8.75, 8.25, 8], 0.5, 3, False, []),
        ([1, 2, 3, 4], 0.0, 3, False, [3]),
        ([1, 2, 3, 4], 0.0, 3, True, []),
        ([4, 3, 2, 1], 0.0, 3, True, [3]),
        ([NAN, 5, 4], 0.0, 3, False, []),  # anything is better than NaN
        ([NAN, NAN, NAN], 0.0, 3, False, [3]),
        ([5, NAN, NAN, 6], 0.0, 3, False, [3]),
        ([5, NAN, NAN], 0.0, 3, True, [3]),
        ([0.0, 0.0], 0.0, 2, False, [2]),
    ],
)
def test_when_a_metric_stands_still(values, threshold, last_k, reverse, found):
    assert stands(Stagnation(threshold, last_k, reverse=reverse), values) == found


@pytest.mark.parametrize("cut", range(7))
def test_the_state_is_all_there_is(cut):
    values = [5, 6, 4, 5, 5, 5, 5]
    first, second = Stagnation(0.0, 3), Stagnation(0.0, 3)
    found = stands(first, values[:cut])
    second.load_state_dict(first.state_dict())
    found += [cut + number for number in stands(second, values[cut:])]
    assert found == stands(Stagnation(0.0, 3), values)
