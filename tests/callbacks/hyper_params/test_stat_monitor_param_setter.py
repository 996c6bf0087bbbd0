from __future__ import annotations

import math
from functools import partial

import pytest

from hookpoint.callbacks import ModelSaver, StatMonitorParamSetter
from hookpoint.callbacks.hyper_params.stat_monitor_param_setter import Stagnation
from hookpoint.core.errors import MissingMetric, UnknownSetting

STAT = [9.0, 8.0, 8.0, 8.0, 8.0, 7.0, math.nan, 7.5, 7.5]


def make(**options):
    return StatMonitorParamSetter("lr", "error", lambda old: old / 2, **{"threshold": 0.0, "last_k": 3, **options})


@pytest.fixture
def rates(rates_of_epochs):
    return partial(rates_of_epochs, metric="error")


def test_the_value_changes_when_the_metric_stops_decreasing(rates):
    assert rates([make()], STAT) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_with_reverse_the_value_changes_when_the_metric_stops_increasing(rates):
    assert rates([make(reverse=True)], [1.0, 2.0, 3.0, 2.0, 2.5]) == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_an_epoch_without_a_value_does_not_count(rates):
    assert rates([make()], [9.0, None, 9.0, None, 9.0]) == [1.0, 1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("cut", range(1, len(STAT)))
def test_a_resumed_run_decides_like_an_uninterrupted_run(rates, disk, cut):
    whole = rates([make()], STAT)
    first = rates([make(), ModelSaver()], STAT[:cut], store=disk)
    assert first + rates([make(), ModelSaver()], STAT, store=disk) == whole


def test_a_second_run_starts_from_scratch(rates):
    setter = make()
    assert rates([setter], [9.0, 9.0]) == [1.0, 1.0]
    assert rates([setter], [9.0, 9.0]) == [1.0, 1.0]


def test_missing_metrics_invalid_arguments_and_unknown_settings_raise(rates):
    with pytest.raises(MissingMetric, match=r"^StatMonitorParamSetter\(lr, error\) reads 'error'"):
        rates([make()], [None, None])
    with pytest.raises(ValueError, match=r"threshold must be a finite number >= 0, got -1"):
        make(threshold=-1)
    with pytest.raises(ValueError, match=r"last_k must be an integer >= 2, got 1"):
        make(last_k=1)
    with pytest.raises(TypeError, match=r"must be a function, got 0\.5"):
        StatMonitorParamSetter("lr", "error", 0.5, 0.0, 3)
    with pytest.raises(UnknownSetting):
        rates([StatMonitorParamSetter("dropout", "error", lambda old: old, 0.0, 3)], [1.0])


# Stagnation


NAN = math.nan


def stands(stagnation, values):
    return [number for number, value in enumerate(values, 1) if stagnation.take(value)]


@pytest.mark.parametrize(
    ("values", "threshold", "last_k", "reverse", "found"),
    [
        ([9, 8, 7, 6, 5, 4], 0.0, 3, False, []),
        ([5, 5, 5, 5, 5, 5], 0.0, 3, False, [3, 6]),  # a detection restarts the window
        ([5, 6, 4, 5, 5], 0.0, 3, False, [5]),
        ([9, 8.75, 8.5, 8.25], 0.5, 3, False, [3]),  # a decrease of 0.5 is not more than 0.5
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
def test_a_metric_that_does_not_improve_within_last_k_values_stagnates(values, threshold, last_k, reverse, found):
    assert stands(Stagnation(threshold, last_k, reverse=reverse), values) == found


@pytest.mark.parametrize("cut", range(7))
def test_the_state_restores_a_stagnation_completely(cut):
    values = [5, 6, 4, 5, 5, 5, 5]
    first, second = Stagnation(0.0, 3), Stagnation(0.0, 3)
    found = stands(first, values[:cut])
    second.load_state_dict(first.state_dict())
    found += [cut + number for number in stands(second, values[cut:])]
    assert found == stands(Stagnation(0.0, 3), values)
