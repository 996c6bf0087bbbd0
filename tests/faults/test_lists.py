"""Lists of callbacks make the same decisions in a killed run, and may change between starts."""

from __future__ import annotations

import itertools
import re
import signal

import pytest
from lists import EPOCHS, LISTS
from scale import FULL, chosen
from subject import STEPS, Variant

NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("order", chosen(list(itertools.permutations(NAMES)), 2), ids="".join)
def test_a_run_resumes_with_reordered_callbacks(order, trial, tally):
    run = trial()
    assert run.start("lists.count", names=NAMES, step=13).wait() == -signal.SIGKILL
    last = run.start("lists.count", names=order)
    result, counts = last.returned
    assert result == run.whole.result
    assert counts == dict.fromkeys(order, STEPS)
    assert "the callbacks of this run do not match the checkpoint" not in last.log
    tally("callbacks reordered", runs=1, bitwise_equal=1)


CHANGES = {
    "added": (["a", "b"], ["a", "new", "b"], {"a": 32, "b": 32, "new": 20}),
    "removed": (["a", "b"], ["b"], {"b": 32}),
    "renamed": (["a", "b"], ["a", "c"], {"a": 32, "c": 20}),
    "exchanged": (["a"], ["b"], {"b": 20}),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["runner", "loop"] if FULL else ["runner"])
def test_a_run_resumes_with_a_changed_list_and_prints_the_changes(kind, change, trial, tally):
    before, after, expected = CHANGES[change]
    run = trial(Variant(kind=kind))
    assert run.start("lists.count", names=before, step=13).wait() == -signal.SIGKILL
    last = run.start("lists.count", names=after)
    result, counts = last.returned
    assert result == run.whole.result
    assert counts == expected
    table = dict(re.findall(r"^  (\w+) +(restored|new, starts from scratch|stored for later)$", last.log, re.MULTILINE))
    told = {name: table.get(name) for name in {*before, *after}}
    assert told == {
        **dict.fromkeys(before, "stored for later"),
        **{name: "restored" if name in before else "new, starts from scratch" for name in after},
    }
    tally(f"callback {change}", runs=1, bitwise_equal=1)


@pytest.mark.parametrize("kind", ["runner", "loop"])
def test_the_state_of_a_missing_callback_is_kept_until_it_returns(kind, trial, tally):
    run = trial(Variant(kind=kind))
    assert run.start("lists.count", names=NAMES, step=9).wait() == -signal.SIGKILL  # after the checkpoint of step 8
    assert run.start("lists.count", names=["a", "d"], step=15).wait() == -signal.SIGKILL  # after the checkpoint of step 14
    assert run.start("lists.count", names=["d", "e", "b"], step=21).wait() == -signal.SIGKILL  # after the checkpoint of step 20
    last = run.start("lists.count", names=["c", "e", "b", "a", "d"])
    result, counts = last.returned
    assert result == run.whole.result
    assert counts == {"c": 8 + 12, "e": 6 + 12, "b": 8 + 6 + 12, "a": 14 + 12, "d": 32}
    tally("callbacks that came and went", runs=1, bitwise_equal=1)


@pytest.mark.thin(4)
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("which", LISTS)
def test_a_killed_run_makes_the_same_decisions(which, at, trial, tally):
    run = trial(number="whole")
    whole = run.start("lists.decide", which=which).returned
    epochs = len(whole["epochs"])
    assert 5 < epochs < EPOCHS, "it is stopped"
    assert len({rate for _, rate, *_ in whole["epochs"]}) > 1, "the rate changes"
    assert len({decay for _, _, decay, *_ in whole["epochs"]}) > 2, "and so does the decay"
    assert whole["best"][1] < 8 * (epochs - 1)
    run = trial(number="killed")
    kills = 0
    for epoch in chosen(range(1, epochs + 1), 2):
        child = run.start("lists.decide", which=which, at=at, epoch=epoch)
        assert child.wait() == -signal.SIGKILL, child.log
        kills += 1
    last = run.start("lists.decide", which=which)
    assert last.returned == whole, last.log
    tally("decisions at the end of epochs", lists=1, kills=kills, bitwise_equal=1)
