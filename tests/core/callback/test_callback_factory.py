"""CallbackFactory makes a callback from four functions, as in tensorpack."""

from __future__ import annotations

import pytest

from hookpoint import CallbackFactory, Every, errors


def test_each_function_gets_the_callback_at_its_point(train):
    said = []
    callback = CallbackFactory(
        setup_graph=lambda self: said.append(("setup", self is callback)),
        before_train=lambda self: said.append(("before", self.epoch_num)),
        trigger=lambda self: said.append(("trigger", self.epoch_num, self.global_step)),
        after_train=lambda self: said.append(("after", self.trainer.name)),
    )
    train([callback], epochs=2, batches=[1, 2], name="mine")
    assert said == [("setup", True), ("before", 0), ("trigger", 1, 2), ("trigger", 2, 4), ("after", "mine")]


def test_functions_are_optional(train):
    said = []
    train([CallbackFactory(trigger=lambda self: said.append(self.epoch_num))], epochs=2)
    assert said == [1, 2]


def test_the_trigger_takes_a_schedule(train):
    said = []
    callback = CallbackFactory(trigger=lambda self: said.append(self.global_step)).when(Every(steps=2))
    train([callback], batches=range(5))
    assert said == [2, 4]


def test_the_run_is_released_after_a_failure(train):
    def fails(self):
        raise ValueError("boom")

    callback = CallbackFactory(before_train=fails, name="mine")
    with pytest.raises(ValueError, match="boom"):
        train([callback])
    with pytest.raises(errors.OutsideRun):
        _ = callback.trainer
    assert callback.name == "mine"
