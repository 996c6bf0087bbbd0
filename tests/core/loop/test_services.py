"""Requests that cannot take effect, or that are not meant as they are written, are reported."""

from __future__ import annotations

import pytest

from hookpoint import HookpointWarning, LambdaCallback
from hookpoint.core.errors import BadArgument, OutsideRun
from hookpoint.core.loop.loop import Loop


def test_a_false_reason_does_not_stop_the_run(train):
    asked = LambdaCallback(on_iter_end=lambda run: run.stop(run.iteration > 3))
    with pytest.raises(BadArgument) as caught:
        train([asked])
    expected = 'run.stop: the reason must be a string, got False.\n  write     if condition: run.stop("why")'
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("reason", "text"), [("why", "why"), (None, "run.stop() was called"), (ValueError("bad data"), "bad data"), (True, "True")]
)
def test_the_reason_of_a_stop_is_a_string(train, reason, text):
    assert train([LambdaCallback(on_iter_end=lambda run: run.stop(reason))]).stop_reason == text


@pytest.mark.parametrize("point", ["on_setup", "on_run_begin", "on_epoch_end", "on_trigger", "on_run_end"])
def test_stop_epoch_warns_if_no_epoch_is_open(train, point):
    with pytest.warns(HookpointWarning, match=r"^run.stop_epoch\(\) has no effect here, because no epoch is open\.") as caught:
        train([LambdaCallback(**{point: lambda run: run.stop_epoch()})])
    assert caught[0].filename == __file__


def test_stop_epoch_ends_a_validation_pass_outside_an_epoch():
    with Loop([LambdaCallback(on_val_iter_end=lambda run: run.stop_epoch())]) as run:
        assert list(run.batches("abc", mode="val")) == ["a"]


def test_saving_after_the_run_raises(train):
    class Store:
        def save(self, state, *, step, tags): ...

    run = train([], store=Store())
    with pytest.raises(OutsideRun, match="this loop is not running"):
        run.save("late")
