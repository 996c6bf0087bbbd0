from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hookpoint import Callback, Every, Hooks, If, Loop, on
from hookpoint.callbacks import EnableCallbackIf, GradientStats
from hookpoint.engine.fused._hook_watch import HookWatch
from hookpoint.engine.fused._leaving_calls import LeavingCalls


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
    """Return the values of run.step at which a run with these callbacks would leave the graph."""
    with Loop([], extra_callbacks=[], monitors=[]) as run:
        calls = LeavingCalls(Hooks(callbacks))
        return [run.step for _ in run.batches(range(12)) if is_due(calls, run, steps)]


def is_due(calls, run, steps):
    """Ask before a step, and advance the schedules as a step outside the graph would by calling the handlers."""
    due = calls.are_due(run, steps=steps)
    calls.settle(run, steps=steps)
    return due


def test_schedules_and_leaves_graph_decide_which_steps_leave():
    assert due_steps([]) == []
    assert due_steps([Always()]) == list(range(12))
    assert due_steps([Declares()]) == [1, 5, 9]
    assert due_steps([scheduled(Every(steps=5))]) == [5, 10]
    assert due_steps([scheduled(~Every(steps=5))]) == [step for step in range(12) if step not in (5, 10)]


def test_a_condition_on_the_run_makes_every_step_leave():
    assert due_steps([scheduled(If(lambda run: False))]) == list(range(12))
    assert due_steps([scheduled(Every(steps=5) & If(lambda run: False))]) == list(range(12))
    assert due_steps([EnableCallbackIf(Declares(), lambda run: False)]) == list(range(12))


def test_a_subclass_with_another_handler_makes_every_step_leave():
    class More(Declares):
        def on_backward_end(self, run): ...

    assert due_steps([More()]) == list(range(12))


def test_explain_names_modules_with_hooks():
    layer = torch.nn.Linear(1, 1)
    layer.register_forward_hook(print)
    calls = LeavingCalls(Hooks([]))
    calls.begin(HookWatch([layer]))
    assert calls.lines()[-1] == "  module '' has hooks: every step, until they are removed"


def test_on_step_begin_matters_only_for_batches_that_step():
    assert due_steps([Declares()], steps=False) == []


def test_explain_lists_the_callbacks_that_leave_the_graph():
    hooks = Hooks([Always(name="A"), Declares(name="B"), scheduled(Every(steps=5)), GradientStats(every=3)])
    calls = LeavingCalls(hooks)
    assert calls.lines() == [
        "",
        "steps outside the CUDA graph",
        "  A at on_backward_end: every step",
        "  look at on_step_begin: steps at which Every(steps=5) fires",
        "  B at on_step_begin: steps for which leaves_graph(run) is True",
        "  GradientStats(*) at on_step_begin: steps for which leaves_graph(run) is True",
    ]
    assert hooks.explain().endswith("\n".join(calls.lines()))
    assert LeavingCalls(Hooks([])).lines()[-1] == "  none after the first three steps"


def test_callbacks_that_always_leave_are_logged(caplog):
    LeavingCalls(Hooks([Always(name="A"), Declares(name="B")])).begin(HookWatch([]))
    assert caplog.messages == ["A listens to on_backward_end, so every step runs outside the CUDA graph"]


def test_a_callback_that_leaves_ten_steps_in_a_row_is_logged(caplog):
    class Each(Callback):
        def leaves_graph(self, run):
            return True

        def on_step_begin(self, run): ...

    assert due_steps([Each(name="Each"), Declares()]) == list(range(12))
    assert caplog.messages == ["Each listens to on_step_begin, so 10 steps in a row run outside the CUDA graph"]


@pytest.mark.parametrize("every", [1, 3])
def test_gradient_stats_leave_at_the_steps_they_measure(every):
    stats = GradientStats(every=every)
    assert [step for step in range(6) if stats.leaves_graph(SimpleNamespace(step=step))] == [
        step for step in range(6) if (step + 1) % every == 0
    ]
