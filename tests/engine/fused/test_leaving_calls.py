from __future__ import annotations

from types import SimpleNamespace

import pytest

from hookpoint import Callback, Every, Hooks, Loop, on
from hookpoint.callbacks import GradientStats
from hookpoint.engine.fused.leaving_calls import LeavingCalls


class Always(Callback):
    def on_backward_end(self, run): ...


class Declares(Callback):
    def leaves_graph(self, run):
        return run.step % 4 == 1

    def on_step_begin(self, run): ...


def scheduled(schedule, point="on_step_begin"):
    @on(point, when=schedule)
    def look(run): ...

    return look


def due_steps(callbacks, *, steps=True):
    """Return the steps, by their number before, at which a run with these callbacks would leave the graph."""
    with Loop([], extra_callbacks=[], monitors=[]) as run:
        calls = LeavingCalls(Hooks(callbacks))
        return [run.step for _ in run.batches(range(12)) if calls.are_due(run, steps=steps)]


def test_a_schedule_and_a_declaration_say_when():
    assert due_steps([]) == []
    assert due_steps([Always()]) == list(range(12))
    assert due_steps([Declares()]) == [1, 5, 9]
    # Nothing advances the schedule but its handler, which a real run calls: from the first due step on, each is.
    assert due_steps([scheduled(Every(steps=5))])[:1] == [5]


def test_on_step_begin_concerns_only_batches_that_step():
    assert due_steps([Declares()], steps=False) == []


def test_explain_lists_them():
    hooks = Hooks([Always(name="A"), Declares(name="B"), scheduled(Every(steps=5)), GradientStats(every=3)])
    calls = LeavingCalls(hooks)
    assert calls.lines() == [
        "",
        "steps outside the CUDA graph",
        "  A at on_backward_end: every step",
        "  look at on_step_begin: steps of Every(steps=5)",
        "  B at on_step_begin: steps that it reads",
        "  GradientStats(*) at on_step_begin: steps that it reads",
    ]
    assert hooks.explain().endswith("\n".join(calls.lines()))
    assert LeavingCalls(Hooks([])).lines()[-1] == "  none, after the first three"


def test_those_that_always_leave_are_named(caplog):
    LeavingCalls(Hooks([Always(name="A"), Declares(name="B")])).warn()
    assert caplog.messages == ["A listens to on_backward_end: every step runs outside the CUDA graph"]


def test_one_that_leaves_step_after_step_is_named_too(caplog):
    class Each(Callback):
        def leaves_graph(self, run):
            return True

        def on_step_begin(self, run): ...

    assert due_steps([Each(name="Each"), Declares()]) == list(range(12))
    assert caplog.messages == ["Each listens to on_step_begin: every step runs outside the CUDA graph"]


@pytest.mark.parametrize("every", [1, 3])
def test_gradient_stats_leave_at_the_steps_that_they_measure(every):
    stats = GradientStats(every=every)
    assert [step for step in range(6) if stats.leaves_graph(SimpleNamespace(step=step))] == [
        step for step in range(6) if (step + 1) % every == 0
    ]
