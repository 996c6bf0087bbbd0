"""A point that is fired under a misspelled name warns, and any other custom point may have no handlers."""

from __future__ import annotations

import pytest

from hookpoint import HookpointWarning, LambdaCallback, declare, errors
from hookpoint.core.loop.loop import Loop


@pytest.mark.parametrize(
    ("fired", "meant"),
    [
        ("on_greeting_", "on_greeting"),
        ("on_greting", "on_greeting"),
        ("greeting", "on_greeting"),
        ("on_epoch_ends", "on_epoch_end"),
        ("train_iter_end", "on_train_iter_end"),
        ("epoch_end", "on_epoch_end"),
    ],
)
def test_a_misspelled_point_warns_once(fired, meant):
    with Loop([LambdaCallback(on_greeting=lambda: None)]) as run:
        with pytest.warns(HookpointWarning) as caught:
            run.fire(fired)
        run.fire(fired)
    (warning,) = caught
    expected = f"run.fire({fired!r}) calls no handler. Did you mean {meant}?"
    declaring = f" If not, call hookpoint.declare({fired!r}) once." if fired.startswith("on_") else ""
    assert (str(warning.message), warning.filename) == (expected + declaring, __file__)


@pytest.mark.parametrize("fired", ["on_farewell", "on_greeting2", "on_train_forward", "on_test_begin"])
def test_a_point_without_handlers_does_not_warn(fired):
    with Loop([LambdaCallback(on_greeting1=lambda: None)]) as run:
        run.fire(fired, value=1)


def test_a_declared_point_does_not_warn():
    declare("on_epoch_endz")
    with Loop([]) as run:
        run.fire("on_epoch_endz")


@pytest.mark.parametrize("point", [3, lambda: None])
def test_anything_but_a_name_raises(point):
    with Loop([]) as run, pytest.raises(errors.BadArgument, match=r"^run.fire: expected the name of a point, got "):
        run.fire(point)
