from __future__ import annotations

import random

import pytest

from hookpoint.parallel.async_sgd._staleness import Applied, Staleness


def test_a_bound_of_0_lets_one_worker_compute_at_a_time():
    rule = Staleness(0)
    assert rule.pull(0) == 0
    assert not rule.may_pull()
    assert rule.push(0) == (0, 0)
    assert rule.pull(1) == 1


def test_a_fast_worker_waits_when_the_bound_is_reached():
    rule = Staleness(2)
    rule.pull("slow")
    for version in range(2):
        assert rule.pull("fast") == version
        assert rule.push("fast") == (version, version)
    rule.pull("fast")
    assert not rule.may_push("fast")  # the slow worker's gradient would be 3 versions old
    assert rule.push("slow") == (0, 2)
    assert rule.push("fast") == (2, 3)


def test_workers_do_not_wait_for_a_worker_that_has_left():
    rule = Staleness(0, version=7)
    rule.pull("lost")
    rule.leave("lost")
    rule.leave("never came")
    assert rule.pull("other") == 7
    assert rule.push("other") == (7, 7)


@pytest.mark.parametrize("bound", [0, 1, 2, 4, 9])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_bound_holds_and_some_worker_can_always_continue(workers, bound):
    chance = random.Random(f"{workers} {bound}")
    for _ in range(30):
        rule, trace = Staleness(bound), []
        left = dict.fromkeys(range(workers), 20)  # gradients
        weights = [chance.random() ** 3 + 0.001 for _ in left]  # some are much slower than others
        while left:
            can = [one for one in left if (rule.may_push(one) if one in rule.computing else rule.may_pull())]
            assert can
            one = chance.choices(can, [weights[worker] for worker in can])[0]
            if one not in rule.computing:
                assert rule.pull(one) == rule.version
                continue
            trace.append(Applied(one, *rule.push(one)))
            left[one] -= 1
            if not left[one] or chance.random() < 0.01:
                del left[one]
                rule.leave(one)
        assert [one.applied_at for one in trace] == list(range(len(trace)))
        assert all(0 <= one.staleness <= bound for one in trace)
    assert bound == 0 or workers == 1 or max(one.staleness for one in trace) > 0
