"""Benchmarks compare round by round, by the median, without the time of the repetition itself."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import rounds

    return rounds


def test_a_ratio_is_taken_round_by_round(rounds: Any) -> None:
    slow_machine_in_the_last_round = rounds.Timing([2.0, 2.0, 20.0]), rounds.Timing([1.0, 1.0, 10.0])
    ratio = slow_machine_in_the_last_round[0].over(slow_machine_in_the_last_round[1])
    assert (ratio.median, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


def test_a_difference_is_taken_round_by_round(rounds: Any) -> None:
    assert rounds.Timing([5.0, 6.0, 17.0]).beyond(rounds.Timing([1.0, 2.0, 3.0])).median == 4.0


def test_the_minimal_time_of_repeating_is_subtracted_from_statements(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"pass": iter([2.0, 9.0]), "work()": iter([12.0, 19.0])}
    monkeypatch.setattr(rounds, "repeated", lambda statement, names: lambda times: next(taken[statement]))
    monkeypatch.setattr(rounds, "_times", lambda sample, nanoseconds: 1)
    group = rounds.Group("two")
    group.add("statement", "work()")
    group.add_sample("sample", lambda times: 3.0)
    group.measure(rounds.Effort(rounds=2, nanoseconds=1000, interpreters=1))
    assert group["statement"].rounds == [10.0, 17.0]
    assert group["sample"].rounds == [3.0, 3.0]


def test_the_interval_of_a_median_uses_order_statistics(rounds: Any) -> None:
    spread = rounds.Spread.of([float(value) for value in range(101)])
    assert spread.median == 50.0
    assert (spread.low, spread.high) == (40.0, 61.0)


def test_a_statement_is_repeated_the_given_number_of_times(rounds: Any) -> None:
    seen: list[int] = []
    rounds.repeated("seen.append(one)", {"seen": seen, "one": 1})(7)
    assert seen == [1] * 7


def test_every_candidate_is_timed_in_every_round(rounds: Any) -> None:
    group = rounds.Group("two")
    group.add("one", "pass")
    group.add_sample("other", lambda times: 3.0 * times)
    group.measure(rounds.Effort(rounds=4, nanoseconds=1000, interpreters=1))
    assert [len(timing.rounds) for timing in group.timings.values()] == [4, 4]
    assert group["other"].rounds == [3.0] * 4
