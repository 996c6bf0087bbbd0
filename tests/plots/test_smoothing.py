from __future__ import annotations

from array import array
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.plots._smoothing import smoothed, thinned

numbers = st.floats(-1e6, 1e6)


def by_formula(values, weight):
    """Return the weighted means of all values so far: the newest has weight 1, the previous one `weight`, and so on."""
    result = []
    for end in range(1, len(values) + 1):
        weights = [weight ** (end - 1 - index) for index in range(end)]
        result.append(sum(w * v for w, v in zip(weights, values[:end], strict=True)) / sum(weights))
    return result


@given(st.lists(numbers, max_size=30), st.sampled_from([0.0, 0.5, 0.9, 0.999]))
def test_the_average_is_the_weighted_mean_of_all_values_so_far(values, weight):
    assert smoothed(values, weight) == pytest.approx(by_formula(values, weight), rel=1e-9, abs=1e-6)


def test_non_finite_values_are_gaps_and_do_not_change_the_average():
    result = smoothed([1.0, nan, 3.0, inf, 5.0], 0.5)
    assert [index for index, value in enumerate(result) if isnan(value)] == [1, 3]
    assert [value for value in result if not isnan(value)] == pytest.approx(by_formula([1.0, 3.0, 5.0], 0.5))


def test_few_points_are_not_thinned():
    assert thinned(array("q", [1, 2]), array("d", [nan, 5.0]), 1)[0] == [1, 2]


@given(st.lists(numbers, min_size=1, max_size=300), st.integers(1, 20))
def test_a_column_has_at_most_four_points_and_keeps_extremes(values, columns):
    xs, ys = thinned(range(len(values)), values, columns)
    assert len(xs) <= max(4 * columns, 4)
    assert xs == sorted(set(xs))
    assert [values[x] for x in xs] == ys
    assert {min(values), max(values), values[0], values[-1]} <= set(ys)


def test_a_spike_among_a_million_points_is_kept():
    values = array("d", [0.5]) * 1_000_000
    values[700_123] = 9.0
    xs, ys = thinned(range(1_000_000), values, 1000)
    assert (700_123, 9.0) in zip(xs, ys, strict=True)


def test_columns_have_equal_width_and_not_equal_counts():
    xs = [*range(1000), 10_000]
    kept, _ = thinned(xs, [0.0] * 1001, 10)
    assert kept == [0, 999, 10_000]


def test_a_column_of_nan_is_a_gap_and_a_single_nan_is_not():
    values = [1.0] * 400 + [nan] * 200 + [2.0] * 400
    values[10] = nan
    _, ys = thinned(range(1000), values, 5)
    assert [value for value in ys if not isnan(value)] == [1.0] * 4 + [2.0] * 4
    assert sum(map(isnan, ys)) == 1


def test_extremes_are_kept_if_the_clock_was_set_back():
    xs = [*range(500), *range(100, 600)]
    _, ys = thinned(xs, [float(index % 97) for index in range(1000)], 5)
    assert (min(ys), max(ys)) == (0.0, 96.0)
