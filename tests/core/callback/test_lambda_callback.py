"""Functions become a callback by keyword."""

from __future__ import annotations

import pickle

import pytest

from hookpoint import Hooks, LambdaCallback, errors


def nothing(run): ...


def test_functions_run_at_their_points_with_the_arguments_they_name(train):
    said = []
    callback = LambdaCallback(
        on_run_begin=lambda: said.append("begin"),
        on_epoch_end=lambda epoch, logs: said.append((epoch, dict(logs))),
    )
    train([callback], body=lambda run: run.log(loss=1))
    assert said == ["begin", (1, {"loss": 1.0})]


@pytest.mark.parametrize("spelling", ["on_epoch_end", "epoch_end", "after_iter", "on_train_batch_end"])
def test_any_spelling_of_a_point_is_accepted(train, spelling):
    said = []
    train([LambdaCallback(**{spelling: lambda run_context: said.append(spelling)})])
    assert said == [spelling]


def test_custom_points_are_accepted():
    said = []
    LambdaCallback(on_hello=lambda name: said.append(name)).run("on_hello", {"name": "world"})
    assert said == ["world"]


def test_callback_options_are_accepted():
    callback = LambdaCallback(name="mine", on_error="warn", ranks="chief", on_epoch_end=nothing)
    (entry,) = Hooks([callback]).entries
    assert (entry.name, entry.on_error, entry.ranks) == ("mine", "warn", "chief")


def test_a_handler_that_is_not_a_function_raises():
    with pytest.raises(TypeError) as caught:
        LambdaCallback(on_epoch_end=3)
    assert str(caught.value) == "LambdaCallback: on_epoch_end must be a function, got 3."


def test_a_misspelled_point_raises_at_compile_time():
    with pytest.raises(errors.UnknownPoint):
        Hooks([LambdaCallback(on_end_epoch=nothing)])


def test_repr_shows_the_points():
    callback = LambdaCallback(name="mine", on_epoch_end=nothing, on_run_end=nothing)
    assert repr(callback) == "LambdaCallback(on_epoch_end, on_run_end)"


def test_a_lambda_callback_can_be_pickled_if_its_functions_can():
    callback = pickle.loads(pickle.dumps(LambdaCallback(on_epoch_end=nothing)))
    assert callback.on_epoch_end is nothing


@pytest.mark.parametrize("function", [lambda: None, lambda context: None])
def test_a_function_that_a_name_of_another_library_would_not_call_raises(function):
    with pytest.raises(errors.UnknownPoint) as caught:
        LambdaCallback(epoch_end=function)
    assert (caught.value.name, caught.value.meant) == ("epoch_end", "on_epoch_end")


def test_a_missing_on_is_suggested():
    with pytest.raises(errors.UnknownPoint) as caught:
        LambdaCallback(train_iter_end=nothing)
    assert caught.value.meant == "on_train_iter_end"
