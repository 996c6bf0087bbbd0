from __future__ import annotations

import json

import pytest

from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.clocks import Clocks
from hookpoint.core.schedule.moment import Moment


@pytest.mark.parametrize("later", [Moment(2, 5, 5), Moment(1, 6, 5), Moment(1, 6, 6), Moment(2, 6, 5)])
def test_a_moment_with_any_later_clock_is_later(later):
    earlier = Moment(1, 5, 5)
    assert later.is_after(earlier)
    assert not earlier.is_after(later)
    assert not later.is_same(earlier)


def test_a_moment_is_not_after_itself():
    assert Moment(1, 5, 5).is_same(Moment(1, 5, 5))
    assert not Moment(1, 5, 5).is_after(Moment(1, 5, 5))


def test_without_an_iteration_epoch_and_step_are_compared():
    old = Moment.of({"step": 5, "epoch": 1})
    assert old == Moment(1, None, 5)
    assert old.is_same(Moment(1, 9, 5))
    assert Moment(1, 9, 6).is_after(old)
    assert Moment(2, 9, 5).is_after(old)
    assert not old.is_after(Moment(1, 9, 5))


def test_a_metric_named_iteration_in_an_older_line_is_not_a_clock():
    assert Moment.of({"step": 5, "epoch": 1, "iteration": 7.0}) == Moment(1, None, 5)


def test_a_moment_survives_json():
    moment = Moment(1, 7, 5)
    assert Moment.of(json.loads(json.dumps(moment.fields()))) == moment


def test_clocks_and_the_run_return_their_moment():
    clocks = Clocks()
    clocks.load_state_dict({"epoch": 2, "epochs_done": 1, "step": 3, "iteration": 6, "samples": 12, "elapsed": 1.0})
    assert clocks.moment == Moment(2, 6, 3)
    with Loop() as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                pass
        assert run.moment == Moment(2, 6, 6)
