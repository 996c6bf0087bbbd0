"""A value that a handler returns is reported once, and the check adds no opcode to a step."""

from __future__ import annotations

import sys
import warnings

import pytest

from hookpoint import Callback, HookpointWarning, LambdaCallback, MainCallback, Replace, guard, on
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.loop import Loop


def train(callbacks, epochs=2, batches=3):
    with Loop(callbacks) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(batches)):
                pass


def named(point, value):
    """Return a callback whose method is a `def`."""

    def method(self):
        return value

    return type("Mine", (Callback,), {point: method})()


@pytest.mark.parametrize(
    ("point", "value", "text"),
    [
        ("on_epoch_end", False, 'Mine.on_epoch_end returned False, which is ignored: call run.stop("why") to stop the run.'),
        ("on_run_end", "bye", "Mine.on_run_end returned 'bye', which is ignored"),
        ("on_run_begin", {}, "Mine.on_run_begin returned a value of type dict, which is ignored"),
        ("on_train_iter_begin", True, "call run.skip_batch() to skip the batch, or"),
        ("on_iter_end", 0, "Mine.on_iter_end returned 0, which is ignored: call run.stop"),
        ("_trigger_step", 1.5, "Mine._trigger_step returned 1.5"),
    ],
)
def test_a_returned_value_is_reported_once_with_the_request_to_use(point, value, text):
    with pytest.warns(HookpointWarning) as caught:
        train([named(point, value)])
    assert [text in str(warning.message) for warning in caught] == [True]


@pytest.mark.parametrize("iteration", [1, 3, 6])
def test_a_value_returned_in_a_single_iteration_is_reported(iteration):
    class Mine(Callback):
        def on_train_iter_end(self, run):
            if run.iteration == iteration:
                return False

    with pytest.warns(HookpointWarning) as caught:
        train([Mine()])
    text = 'Mine.on_train_iter_end returned a value, which is ignored: call run.stop("why") to stop the run.'
    assert [str(warning.message) for warning in caught] == [text]


def test_a_value_returned_by_a_function_without_a_module_is_reported():
    names = {}
    exec("def on_epoch_end(run):\n    return 1", names)
    names["on_epoch_end"].__module__ = None
    with pytest.warns(HookpointWarning, match="returned 1, which is ignored"):
        train([LambdaCallback(on_epoch_end=names["on_epoch_end"])])


def test_a_forward_that_returns_the_loss_warns_to_set_it():
    class Main(MainCallback):
        def on_iter_forward(self, run):
            return 1.0

    hooks = Hooks([Main()])
    dispatch = hooks.dispatch("on_iter_forward", mode="train")
    with Loop([]) as run:
        dispatch(run)  # the value of the first call is dropped, and that of the next is reported
        with pytest.warns(HookpointWarning, match=r"set run.outputs and run.loss"):
            dispatch(run)


def test_none_replace_and_the_value_of_a_lambda_are_not_reported():
    @on("on_epoch_end")
    def annotated(run) -> None: ...

    class Quiet(Callback):
        def on_iter_end(self):
            return Replace(1)

        def on_epoch_end(self):
            return None

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train([LambdaCallback(on_epoch_end=lambda: 3, on_iter_end=lambda: 4), Quiet(), annotated])


def test_a_guard_reports_a_value_returned_without_replace():
    @guard("on_double")
    def double(number, *, callbacks=None):
        return 2 * number

    mine = named("on_double_end", 5)
    with pytest.warns(HookpointWarning, match=r"Mine.on_double_end returned 5, which is ignored: return Replace\(value\)"):
        assert double(2, callbacks=[mine]) == 4


@pytest.mark.parametrize("point", ["on_iter_begin", "on_train_iter_end", "on_backward_end", "on_batch_fetch_begin"])
def test_the_check_for_a_value_adds_no_opcode_to_a_step(point):
    def never_checked(self) -> None: ...

    counts = [
        executed(Hooks([callback]).dispatch(point, mode="train"))
        for callback in (named(point, None), type("Mine", (Callback,), {point: never_checked})())
    ]
    assert counts[0] == counts[1] > 3


def executed(dispatch):
    """Return how many opcodes the function of a point executes, without its handlers."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code is not dispatch.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        dispatch(None)
    finally:
        sys.settrace(before)
    return count
