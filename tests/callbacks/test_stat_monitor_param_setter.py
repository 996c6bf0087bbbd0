from __future__ import annotations

import math

import pytest
import torch

from hookpoint.callbacks import ModelSaver, StatMonitorParamSetter
from hookpoint.core.errors import MissingMetric, UnknownSetting
from hookpoint.core.loop import Loop

STAT = [9.0, 8.0, 8.0, 8.0, 8.0, 7.0, math.nan, 7.5, 7.5]


def make(**options):
    return StatMonitorParamSetter("lr", "error", lambda old: old / 2, **{"threshold": 0.0, "last_k": 3, **options})


def train(setter, stat, others=(), **given):
    """Run an epoch for each value of the metric, None for none; return the rate after each epoch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    after = []
    with Loop([setter, *others], optimizer=optimizer, **given) as run:
        for epoch in run.epochs(len(stat)):
            after.append(run.hyper["lr"])
            if stat[epoch - 1] is not None:
                run.log(error=stat[epoch - 1])
    return [*after[1:], optimizer.param_groups[0]["lr"]] if after else []


def test_it_changes_when_the_metric_stands_still():
    assert train(make(), STAT) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_the_other_way_round():
    assert train(make(reverse=True), [1.0, 2.0, 3.0, 2.0, 2.5]) == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_an_epoch_without_a_value_does_not_count():
    assert train(make(), [9.0, None, 9.0, None, 9.0]) == [1.0, 1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("cut", range(1, len(STAT)))
def test_a_resumed_run_decides_as_an_uninterrupted_one(disk, cut):
    whole = train(make(), STAT)
    first = train(make(), STAT[:cut], [ModelSaver()], store=disk)
    assert first + train(make(), STAT, [ModelSaver()], store=disk) == whole


def test_a_second_run_starts_anew():
    setter = make()
    assert train(setter, [9.0, 9.0]) == [1.0, 1.0]
    assert train(setter, [9.0, 9.0]) == [1.0, 1.0]


def test_mistakes_are_refused():
    with pytest.raises(MissingMetric, match=r"^StatMonitorParamSetter\(lr, error\) reads 'error'"):
        train(make(), [None, None])
    with pytest.raises(ValueError, match=r"threshold=-1\) means nothing"):
        make(threshold=-1)
    with pytest.raises(ValueError, match=r"last_k=1\) means nothing"):
        make(last_k=1)
    with pytest.raises(TypeError, match=r"takes a function, not 0\.5"):
        StatMonitorParamSetter("lr", "error", 0.5, 0.0, 3)
    with pytest.raises(UnknownSetting):
        train(StatMonitorParamSetter("dropout", "error", lambda old: old, 0.0, 3), [1.0])
