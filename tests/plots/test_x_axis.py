from __future__ import annotations

import pytest

from hookpoint.plots._x_axis import axis_along, time_unit


def places(x, subject, series):
    return list(axis_along(x, subject.series, time_unit([subject.series.values()]))(series))


def test_steps_are_as_they_are(values, subject):
    loss = values("loss", [1.0] * 3, stride=5)
    assert places("step", subject(loss), loss) == [5, 10, 15]


def test_epochs_go_on_between_whole_ones(values, subject):
    loss, val = values("loss", [1.0] * 4, stride=5), values("val_loss", [1.0] * 2, "epoch", stride=10)
    assert places("epoch", subject(loss, val), loss) == [0.5, 1.0, 1.5, 2.0]
    assert places("epoch", subject(loss, val), val) == [1.0, 2.0]


def test_an_epoch_that_is_under_way_is_as_long_as_the_one_before(values, subject):
    loss, whole = values("loss", [1.0] * 5, stride=5), values("loss", [1.0] * 2, "epoch", stride=10)
    assert places("epoch", subject(loss, whole), loss) == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_before_the_first_epoch_is_zero(values, subject):
    loss = values("loss", [1.0] * 3)
    loss.epochs[:] = type(loss.epochs)("q", [0, 0, 1])
    assert places("epoch", subject(loss), loss) == [0.0, 0.0, 1.0]


def test_time_counts_from_the_first_record(values, subject):
    loss, val = values("loss", [1.0] * 3), values("val_loss", [1.0], "epoch", stride=3)
    assert places("time", subject(val, loss), loss) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(("seconds", "unit"), [(100, "seconds"), (200, "minutes"), (20_000, "hours"), (300_000, "days")])
def test_time_has_the_unit_of_the_longest_run(values, subject, seconds, unit):
    short, long = values("loss", [1.0] * 2), values("loss", [1.0] * 2, stride=seconds)
    assert time_unit([[short], [long]]) == unit
