"""The calls of a point become one function, and errors still name the callback that failed."""

from __future__ import annotations

import pytest

from hookpoint import Callback, Every, Hooks, LambdaCallback
from hookpoint.core.loop.loop import Loop


class Fails(Callback):
    def __init__(self, **options):
        super().__init__(**options)

    def on_iter_end(self, run):
        raise ValueError("boom")


def nothing(): ...


def deep(depth):
    if depth:
        deep(depth - 1)
    raise ValueError("boom")


@pytest.mark.parametrize("position", [0, 1, 4])
def test_the_note_names_the_callback_that_failed(train, position):
    callbacks = [LambdaCallback(on_iter_end=nothing, name=f"fine {number}") for number in range(5)]
    callbacks.insert(position, Fails(name="bad"))
    with pytest.raises(ValueError, match="boom") as caught:
        train(callbacks)
    assert caught.value.__notes__ == ["in callback bad at on_iter_end (step 1, rank 0)"]


def test_the_note_names_the_right_point_if_two_points_share_a_function(train):
    def fails(run):
        raise ValueError("boom")

    callbacks = [LambdaCallback(on_train_iter_end=nothing, name="fine"), LambdaCallback(on_iter_end=fails, name="bad")]
    with pytest.raises(ValueError, match="boom") as caught:
        train(callbacks)
    assert caught.value.__notes__ == ["in callback bad at on_iter_end (step 1, rank 0)"]


def test_the_note_is_right_for_an_error_from_nested_calls(train):
    callbacks = [LambdaCallback(on_epoch_end=nothing), LambdaCallback(on_epoch_end=lambda: deep(20), name="bad")]
    with pytest.raises(ValueError, match="boom") as caught:
        train(callbacks)
    assert caught.value.__notes__ == ["in callback bad at on_epoch_end (step 1, rank 0)"]


def test_the_note_of_a_trigger_names_its_point_and_step(train):
    class Triggers(Callback):
        def on_trigger(self):
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        train([Triggers().when(Every(steps=3))], batches=range(9))
    assert caught.value.__notes__ == ["in callback Triggers at on_iter_end (step 3, rank 0)"]


def test_the_note_of_a_failed_condition_names_its_callback(train):
    from hookpoint import If

    class Triggers(Callback):
        def on_trigger(self): ...

    with pytest.raises(ZeroDivisionError) as caught:
        train([Triggers().when(If(lambda run: 1 / 0))])
    assert caught.value.__notes__ == ["in callback Triggers at on_epoch_end (step 1, rank 0)"]


def test_an_error_in_a_nested_pass_has_a_note_for_each_callback(train):
    class Validates(Callback):
        def on_epoch_end(self, run):
            for _ in run.batches([1], mode="val"):
                pass

    with pytest.raises(ValueError, match="boom") as caught:
        train([Validates(), LambdaCallback(on_val_iter_end=lambda: deep(0), name="inner")])
    assert caught.value.__notes__ == [
        "in callback inner at on_val_iter_end (step 1, rank 0)",
        "in callback Validates at on_epoch_end (step 1, rank 0)",
    ]


def test_an_error_in_the_loop_body_has_no_note():
    with pytest.raises(ValueError, match="boom") as caught, Loop([Fails()]) as run:
        for _ in run.batches([1]):
            raise ValueError("boom")
    assert not hasattr(caught.value, "__notes__")


def test_callbacks_after_a_failure_are_not_called(train):
    said = []
    with pytest.raises(ValueError, match="boom"):
        train([Fails(), LambdaCallback(on_iter_end=lambda: said.append(1))])
    assert said == []


@pytest.mark.parametrize("name", ["two words", "a-b", "x\ny", "§", "class"])
def test_the_name_of_a_callback_is_never_used_as_code(train, name):
    said = []
    train([LambdaCallback(name=name, on_iter_end=lambda: said.append(1))])
    assert said == [1]


def test_keyword_only_arguments_are_passed_by_keyword(train):
    said = []

    class Watch(Callback):
        def on_iter_end(self, missing=7, *, batch, batch_idx):
            said.append((missing, batch, batch_idx))

    train([Watch()], batches=["data"])
    assert said == [(7, "data", 0)]


def test_each_call_sees_the_changes_of_earlier_calls(train):
    said = []

    class Sets(Callback):
        def on_iter_begin(self, run):
            run.batch = run.batch * 10

    train([Sets(), LambdaCallback(on_iter_begin=lambda batch: said.append(batch))], batches=[1, 2])
    assert said == [10, 20]


def test_a_trigger_by_iterations_runs_only_in_training(train):
    seen = []

    class Triggers(Callback):
        def on_trigger(self, run):
            seen.append((run.mode, run.step))

    train([Triggers().when(Every(iterations=1))], batches=[1], val=[1, 2])
    assert seen == [("train", 1)]


def test_a_point_without_handlers_has_no_function():
    hooks = Hooks([Callback()])
    assert hooks.dispatch("on_iter_begin", "on_train_iter_begin", mode="train") is None
