from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookpoint.core.checkpoint.store import Kept
from hookpoint.core.errors import BadRetention
from hookpoint.storage.retention import KeepAny, KeepEvery, KeepNewest


def checkpoints(*elapsed):
    return [Kept(f"step-{step}", step, seconds) for step, seconds in enumerate(elapsed, 1)]


def steps(kept):
    return [one.step for one in kept]


def test_keep_newest_keeps_the_newest():
    assert steps(KeepNewest(2)(checkpoints(1, 2, 3))) == [2, 3]
    assert steps(KeepNewest(5)(checkpoints(1, 2, 3))) == [1, 2, 3]
    assert steps(KeepNewest(1)([])) == []


def test_keep_every_keeps_the_first_of_each_interval_of_training_time():
    kept = checkpoints(50, 70, 110, 119.9, 120, 500, 530, 539)
    assert steps(KeepEvery(1)(kept)) == [1, 2, 5, 6]
    assert steps(KeepEvery(0.5)(kept)) == [1, 2, 3, 5, 6, 7]
    assert steps(KeepEvery(60)(kept)) == [1]


def test_keep_every_with_waits_keeps_none_in_the_first_interval():
    rule = KeepEvery(1, waits=True)
    assert steps(rule([])) == []
    assert steps(rule(checkpoints(10, 50, 59.9))) == []
    assert steps(rule(checkpoints(10, 50, 60, 70))) == [1, 3]
    assert repr(rule) == "KeepEvery(minutes=1)"


def test_keep_any_keeps_the_ordered_union_of_its_rules():
    rule = KeepAny(KeepNewest(2), KeepEvery(1))
    assert steps(rule(checkpoints(61, 62, 63, 64))) == [1, 3, 4]
    assert repr(rule) == "KeepAny(KeepNewest(number=2), KeepEvery(minutes=1))"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeepNewest(0), "KeepNewest: number must be an integer ≥ 1, got 0."),
        (lambda: KeepNewest(True), "KeepNewest: number must be an integer ≥ 1, got True."),
        (lambda: KeepNewest(2.0), "KeepNewest: number must be an integer ≥ 1, got 2.0."),
        (lambda: KeepEvery(0), "KeepEvery: minutes must be a number > 0, got 0."),
        (lambda: KeepEvery(float("nan")), "KeepEvery: minutes must be a number > 0, got nan."),
        (lambda: KeepEvery("5"), "KeepEvery: minutes must be a number > 0, got '5'."),
        (
            lambda: KeepAny(),
            "KeepAny: () are not rules.\n  give      rules, such as KeepAny(KeepNewest(3), KeepEvery(60))",
        ),
        (
            lambda: KeepAny(3),
            "KeepAny: (3,) are not rules.\n  give      rules, such as KeepAny(KeepNewest(3), KeepEvery(60))",
        ),
    ],
)
def test_invalid_rules_raise(make, message):
    with pytest.raises(BadRetention, match=f"^{re.escape(message)}$"):
        make()


def test_a_rule_class_raises():
    with pytest.raises(BadRetention, match="are not rules"):
        KeepAny(KeepNewest)


# Properties of all rules and histories

times = st.lists(st.floats(0, 1e5), max_size=30).map(sorted)
simple = st.one_of(
    st.builds(KeepNewest, st.integers(1, 5)),
    st.builds(KeepEvery, st.floats(0.01, 500)),
)
rules = st.one_of(simple, st.lists(simple, min_size=1, max_size=3).map(lambda some: KeepAny(*some)))


@given(rules, times)
def test_kept_checkpoints_stay_kept_after_the_others_are_deleted(rule, elapsed):
    there = checkpoints(*elapsed)
    kept = list(rule(there))
    assert kept == [one for one in there if one in kept]
    assert list(rule(kept)) == kept


@given(st.integers(1, 5), st.lists(simple, max_size=2), times)
def test_the_newest_are_kept_in_any_combination_of_rules(number, others, elapsed):
    there = checkpoints(*elapsed)
    assert set(there[-number:]) <= set(KeepAny(KeepNewest(number), *others)(there))


@given(st.floats(0.01, 500), st.integers(1, 4), times)
def test_deleting_one_by_one_keeps_the_same_checkpoints_as_all_at_once(minutes, number, elapsed):
    rule = KeepAny(KeepNewest(number), KeepEvery(minutes))
    there = []
    for one in checkpoints(*elapsed):
        there = list(rule([*there, one]))
    expected = list(rule(checkpoints(*elapsed)))
    assert there == expected
