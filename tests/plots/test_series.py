"""A long series keeps its shape, its extremes and its ends, in bounded memory."""

from __future__ import annotations

import math
import random

import pytest

from hookpoint.plots.series import Series


def series_of(values, **options):
    series = Series("loss", "step", **options)
    for step, value in enumerate(values):
        series.add(step, 1 + step // 1000, step / 10, value)
    return series


def test_a_short_series_keeps_all_values():
    series = series_of([3.0, 1.0, 2.0], smooth=0.5)
    assert (series.steps.tolist(), series.values.tolist(), series.count, series.smoothed) == (
        [0, 1, 2],
        [3.0, 1.0, 2.0],
        3,
        None,
    )


@pytest.mark.parametrize("buckets", [16, 33, 64])
@pytest.mark.parametrize("count", [1_000, 20_000])
@pytest.mark.parametrize("has_odd", [False, True])
def test_extremes_and_ends_are_kept(buckets, count, has_odd):
    rng = random.Random(count + buckets)
    odd = [math.nan, math.inf, 1e305] if has_odd else []
    values = [rng.choice([*odd, *[rng.gauss(0, 1)] * 9]) for _ in range(count)]
    series = series_of(values, buckets=buckets)
    kept = [value for value in series.values if abs(value) < 1e300]
    numbers = [value for value in values if abs(value) < 1e300]
    assert series.count == count
    assert len(series.values) <= 9 * buckets
    assert (min(kept), max(kept)) == (min(numbers), max(numbers))
    assert min(value for value in kept if value > 0) == min(value for value in numbers if value > 0)
    assert (series.steps[0], series.steps[-1]) == (0, count - 1)
    assert list(series.steps) == sorted(set(series.steps))
    assert all(repr(values[step]) == repr(value) for step, value in zip(series.steps, series.values, strict=True))
    assert any(not math.isfinite(value) for value in series.values) == has_odd


def test_a_series_is_thinned_evenly():
    series = series_of([float(step % 7) for step in range(100_000)], buckets=64)
    gaps = [later - earlier for earlier, later in zip(series.steps, series.steps[1:], strict=False)]
    assert max(gaps) <= 2 * 100_000 / 64 * 2


def test_the_moving_average_includes_all_values():
    values = [random.Random(step).random() for step in range(5_000)]
    series = series_of(values, buckets=16, smooth=0.9)
    total = seen = 0.0
    averages = []
    for value in values:
        total, seen = 0.9 * total + (1 - 0.9) * value, 0.9 * seen + (1 - 0.9)
        averages.append(total / seen)
    smoothed = series.smoothed
    assert smoothed.count == 5_000
    assert len(smoothed.values) < 200
    assert [averages[step] for step in smoothed.steps] == smoothed.values.tolist()
    assert (min(averages), max(averages)) == (min(smoothed.values), max(smoothed.values))


def test_a_lower_limit_applies_to_existing_values():
    series = series_of([0.5] * 5_000, buckets=512)
    series.limit(16)
    assert (len(series.values) <= 16 * 4, series.count) == (True, 5_000)
