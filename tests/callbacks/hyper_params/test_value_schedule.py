from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.callbacks import ScheduledHyperParamSetter
from hookpoint.callbacks.hyper_params._value_schedule import ValueSchedule
from hookpoint.core.errors import BadSchedule


def walked(schedule, upto, start=0):
    """Return what is set at each value of the clock, where anything is."""
    found, done = {}, start - 1
    for now in range(start, upto + 1):
        value = schedule.due(done, now)
        done = now
        if value is not None:
            found[now] = value
    return found


def test_values_are_set_at_their_points_only():
    assert walked(ValueSchedule([(3, 0.1), (0, 1.0), (6, 0.0)]), 8) == {0: 1.0, 3: 0.1, 6: 0.0}


def test_points_that_are_not_sorted_are_told_in_one_line(caplog):
    ValueSchedule([(0, 1.0), (3, 0.1)])
    assert caplog.messages == []
    ScheduledHyperParamSetter("learning_rate", [(6, 0.01), (3, 0.1)])
    assert caplog.messages == ["The points of a schedule are not sorted; using [(3, 0.1), (6, 0.01)]"]


def test_before_the_first_point_nothing_is_set():
    assert walked(ValueSchedule([(3, 0.1)]), 2) == {}


def test_linear_values_move_from_point_to_point():
    assert walked(ValueSchedule([(1, 1.0), (3, 0.5), (5, 1.5)], "linear"), 7) == {1: 1.0, 2: 0.75, 3: 0.5, 4: 1.0, 5: 1.5}


def test_what_a_jump_passed_over_is_made_up_for():
    assert ValueSchedule([(3, 0.1), (6, 0.2)]).due(2, 5) == 0.1
    assert ValueSchedule([(3, 0.1), (6, 0.2)]).due(2, 9) == 0.2
    assert ValueSchedule([(0, 0.0), (4, 4.0)], "linear").due(2, 9) == 4.0


def test_a_start_in_the_middle_sets_what_should_hold():
    assert ValueSchedule([(0, 1.0), (30, 0.0)]).due(-1, 40) == 0.0
    assert ValueSchedule([(0, 1.0), (4, 0.0)], "linear").due(-1, 1) == 0.75
    assert ValueSchedule([(2, 1.0)]).due(-1, 1) is None


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "is empty"),
        ([(1, 0.1), (1, 0.2)], "has two values at 1"),
        ([(-1, 0.1)], "is not a point"),
        ([(1.5, 0.1)], "is not a point"),
        ([(True, "a")], "is not a point"),
        ([(1, math.nan)], "is not a point"),
        ([(1, math.inf)], "is not a point"),
        ([(1, "0.1")], "is not a point"),
        ([(1, True)], "is not a point"),
        ([(1, 2, 3)], "is not a point"),
        ([5], "is not a point"),
    ],
)
def test_what_is_no_schedule_is_refused(points, says):
    with pytest.raises(BadSchedule, match=says):
        ValueSchedule(points)


def test_another_interpolation_is_refused():
    with pytest.raises(BadSchedule, match="interp must be None or 'linear', got 'cubic'"):
        ValueSchedule([(1, 0.1)], "cubic")


def test_numpys_integers_are_integers():
    assert ValueSchedule([(numpy.int64(2), 0.1)]).due(0, 2) == 0.1


POINTS = st.dictionaries(st.integers(0, 40), st.floats(-10, 10), min_size=1, max_size=6)


@given(POINTS, st.sampled_from([None, "linear"]), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_however_the_clock_moves_the_value_is_that_of_a_walk(points, interp, stops):
    schedule = ValueSchedule(points.items(), interp)
    by_now = walked(schedule, 50)
    done, jumped = -1, None
    for now in sorted(stops):
        value = schedule.due(done, now)
        done = now
        jumped = jumped if value is None else value
        held = [by_now[at] for at in sorted(by_now) if at <= now][-1:]
        assert jumped == (held[0] if held else None)
