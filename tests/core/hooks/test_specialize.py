"""A specialized function does the same, without branches on settled values."""

from __future__ import annotations

import inspect
import traceback
from types import SimpleNamespace

import pytest

from hookpoint.core.hooks.specialize import settled_values, specialize


class Counter:
    """The object that the functions below work on."""

    def __init__(self, **given):
        self.total, self.listener, self.limit, self.quiet = 0, None, 1, False
        vars(self).update(given)

    def add(self, amount):
        """Add an amount, twice if there is a listener."""
        total, listener = self.total, self.listener
        if listener is not None:
            listener(amount)
            total += amount
        self.total = total + amount

    def check(self, amount):
        if amount > self.limit:
            raise ValueError(amount)

    def stop(self, amount):
        if not self.quiet:
            return
        self.total = -amount


def work(counter, amounts):
    """Add all amounts."""
    seen: list = []
    for amount in amounts:
        counter.add(amount)
        counter.check(amount)
        seen.append(counter.total if counter.limit > 1 or not counter.quiet else None)
    return seen


def stopping(counter, amount):
    counter.stop(amount)
    return counter.total


INLINED = {"counter.add": Counter.add, "counter.check": Counter.check, "counter.stop": Counter.stop}


def plan_for(function, counter, *paths):
    settled = settled_values(paths, counter=counter)
    plan = specialize(function, settled, INLINED)
    return plan, plan.bound(settled)


def test_settled_branches_are_removed_and_methods_inlined():
    plan, made = plan_for(work, Counter(limit=5, quiet=True), "counter.listener", "counter.limit", "counter.quiet")
    assert plan.source() == inspect.cleandoc("""
        def work(counter, amounts):
            seen = []
            for amount in amounts:
                total = counter.total
                counter.total = total + amount
                if amount > 5:
                    raise ValueError(amount)
                seen.append(counter.total)
            return seen
    """)
    assert made(Counter(limit=5), [1, 2]) == work(Counter(limit=5), [1, 2]) == [1, 3]


def test_a_settled_object_is_read_once():
    heard: list = []
    counter = Counter(listener=heard.append, limit=5)
    plan, made = plan_for(work, counter, "counter.listener")
    assert plan.source().startswith("listener = counter.listener\ndef work(counter, amounts):\n")
    assert "is not None" not in plan.source()
    assert made(counter, [1, 2]) == [2, 6]
    assert heard == [1, 2]
    assert inspect.signature(work).parameters.keys() <= inspect.signature(made).parameters.keys()


def test_plans_are_shared_between_objects_but_not_between_equal_constants():
    plans = [
        plan_for(work, Counter(listener=print, limit=limit), "counter.listener", "counter.limit")[0] for limit in (1, 1, True)
    ]
    assert plans[0] is plans[1]
    assert plans[0] is not plans[2]
    other = plan_for(work, Counter(listener=repr, limit=1), "counter.listener", "counter.limit")[0]
    assert other is plans[0]


@pytest.mark.parametrize(("quiet", "expected"), [(True, -3), (False, 0)])
def test_a_method_is_inlined_only_if_it_cannot_return_early(quiet, expected):
    plan, made = plan_for(stopping, Counter(quiet=quiet), "counter.quiet")
    assert ("counter.stop(amount)" in plan.source()) is not quiet, "with quiet=True, the return is left out"
    assert made(Counter(quiet=quiet), 3) == expected


def test_a_traceback_shows_the_lines_of_the_plain_function():
    _, made = plan_for(work, Counter(), "counter.listener", "counter.limit")
    with pytest.raises(ValueError, match="2") as failed:
        made(Counter(), [1, 2])
    innermost = traceback.extract_tb(failed.value.__traceback__)[-1]
    assert (innermost.filename, innermost.name, innermost.line) == (__file__, "work", "raise ValueError(amount)")


def test_a_function_without_source_runs_unchanged():
    names: dict = {}
    exec("def work(counter):\n    return counter.limit + 1", names)
    plan = specialize(names["work"], {"counter.limit": 3}, {})
    assert plan.bound({"counter.limit": 3}) is names["work"]
    assert plan.source() == "# no source: work runs as written"


def test_a_settled_name_does_not_shadow_a_local_variable():
    def named(counter):
        total = counter.other.total
        total = counter.total(total)
        return total

    counter = SimpleNamespace(total=str, other=SimpleNamespace(total=3))
    plan, made = plan_for(named, counter, "counter.total")
    assert plan.source().startswith("counter_total = counter.total\n")
    assert made(counter) == "3"
