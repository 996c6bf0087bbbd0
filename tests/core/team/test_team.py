"""The core's support for teams, as far as one process can test it; real teams are in tests/parallel."""

from __future__ import annotations

import math

import pytest

from hookpoint import Callback, Every, If
from hookpoint.core.callback.current import CURRENT_CALL
from hookpoint.core.errors import BadLoop, CompileError, OutOfStep
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.log.sums import total_of
from hookpoint.core.loop.loop import Loop
from hookpoint.core.loop.services import machine_of
from hookpoint.core.team.checked_team import mismatch, unanswered
from hookpoint.core.team.team import Team
from hookpoint.core.team.team_clocks import TeamClocks
from hookpoint.core.text import terminal


def test_a_single_process_has_no_agreement_and_reduces_alone():
    with Loop([]) as run:
        assert machine_of(run).agreement is None
        assert type(run.team) is Team
        assert [run.reduce(2.5, op) for op in ("sum", "mean", "max", "min")] == [2.5] * 4
        with pytest.raises(BadLoop, match="unknown op 'product'"):
            run.reduce(1, "product")


def test_same_on_all_ranks_changes_nothing_in_a_single_process():
    with Loop([]) as run:
        for _ in run.epochs(3):
            for _ in run.batches("abc"):
                if run.epoch == 1:
                    run.stop_epoch(same_on_all_ranks=True)
                else:
                    run.stop("enough", alike=True)
    assert (run.iteration, run.stop_reason) == (2, "enough")


@pytest.mark.parametrize("claim", ["collective", "may_skip"])
def test_a_collective_or_skipping_callback_on_the_chief_only_raises(claim):
    callback = type("Mine", (Callback,), {claim: True, "ranks": "chief", "on_iter_end": lambda self: None})()
    with pytest.raises(CompileError, match=f"Mine has {claim} = True but runs on the chief only"):
        Hooks([callback])


def test_the_current_call_in_a_team_is_the_innermost_call():
    seen = []

    class Inner(Callback):
        def on_val_iter_end(self):
            seen.append(CURRENT_CALL.get())

    class Outer(Callback):
        def on_iter_end(self, run):
            seen.append(CURRENT_CALL.get())
            inner(run)
            seen.append(CURRENT_CALL.get())

    hooks = Hooks([Outer(), Inner()], is_in_team=True)
    inner, outer = hooks.dispatch("on_val_iter_end"), hooks.dispatch("on_iter_end")
    with Loop([]) as run:
        outer(run)
    assert CURRENT_CALL.get() is None
    assert [(call.entry.name, call.point) for call in seen] == [
        ("Outer", "on_iter_end"),
        ("Inner", "on_val_iter_end"),
        ("Outer", "on_iter_end"),
    ]


def test_schedules_are_the_same_on_all_ranks_unless_a_function_decides():
    assert Every(steps=3).same_on_all_ranks
    assert (Every(minutes=3) | ~Every(epochs=2)).same_on_all_ranks
    assert not (Every(steps=3) & If(lambda run: True)).same_on_all_ranks


def test_the_time_of_a_team_advances_when_it_is_agreed_on():
    clocks = TeamClocks()
    clocks.start()
    assert clocks.elapsed() == 0.0
    clocks.agree(1500)
    clocks.agree(1000)
    assert clocks.elapsed() == 1.5
    clocks.load_state_dict({**clocks.state_dict(), "elapsed": 7.25})
    assert clocks.elapsed() == 7.25
    assert clocks.milliseconds() >= 7250
    clocks.stop()
    assert clocks.elapsed() == 7.25


def test_sums_are_exact_and_accept_nonfinite_values():
    assert total_of([1e16, 1.0, -1e16]) == 1.0
    assert math.isnan(total_of([math.inf, -math.inf]))
    assert total_of([1e308, 1e308]) == 2 * int(1e308)
    assert total_of([1e308, 1e308, math.inf]) == math.inf


def test_mismatched_and_unanswered_calls_name_the_ranks():
    assert str(mismatch(["a", "b", "a"])) == (
        "the ranks do not make the same collective call.\n  rank 0,2  a\n  rank 1    b\n  call      on all ranks or on none"
    )
    late, gone = unanswered(1, 3, "x", RuntimeError("Timed out")), unanswered(0, 2, "x", RuntimeError("closed"))
    assert isinstance(late, OutOfStep)
    assert str(late).startswith("rank 1 waits in x; one of the other 2 ranks did not arrive in time.\n  call ")
    assert str(gone).startswith("rank 0 waits in x; the other rank is gone.\n  see ")


def test_a_process_that_is_not_the_chief_prints_nothing(capsys, monkeypatch):
    with Loop([]):
        terminal.say("chief")
    monkeypatch.setenv("RANK", "1")
    with Loop([]):
        terminal.say("not the chief")
    terminal.say("after")
    assert capsys.readouterr().err == "chief\nafter\n"
