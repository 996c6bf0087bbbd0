from __future__ import annotations

import math
from functools import partial

import pytest

from hookpoint.callbacks import ModelSaver, StatMonitorParamSetter
from hookpoint.core.errors import MissingMetric, UnknownSetting

STAT = [9.0, 8.0, 8.0, 8.0, 8.0, 7.0, math.nan, 7.5, 7.5]


def make(**options):
    return StatMonitorParamSetter("lr", "error", lambda old: old / 2, **{"threshold": 0.0, "last_k": 3, **options})


@pytest.fixture
def rates(rates_of_epochs):
    return partial(rates_of_epochs, metric="error")


def test_it_changes_when_the_metric_stands_still(rates):
    assert rates([make()], STAT) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_the_other_way_round(rates):
    assert rates([make(reverse=True)], [1.0, 2.0, 3.0, 2.0, 2.5]) == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_an_epoch_without_a_value_does_not_count(rates):
    assert rates([make()], [9.0, None, 9.0, None, 9.0]) == [1.0, 1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("cut", range(1, len(STAT)))
def test_a_resumed_run_decides_as_an_uninterrupted_one(rates, disk, cut):
    whole = rates([make()], STAT)
    first = rates([make(), ModelSaver()], STAT[:cut], store=disk)
    assert first + rates([make(), ModelSaver()], STAT, store=disk) == whole


def test_a_second_run_starts_anew(rates):
    setter = make()
    assert rates([setter], [9.0, 9.0]) == [1.0, 1.0]
    assert rates([setter], [9.0, 9.0]) == [1.0, 1.0]


def test_mistakes_are_refused(rates):
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
