"""The one callback that computes the step."""

from __future__ import annotations

import pytest

from hookpoint import Callback, CallbackPipeline, Hooks, MainCallBack, MainCallback, errors
from hookpoint.core.loop.loop import Loop


class Loss:
    """A number with a backward method."""

    def __init__(self, value, said):
        self.value, self._said = value, said

    def backward(self):
        self._said.append("backward")


class Optimizer:
    def __init__(self, said):
        self._said = said

    def zero_grad(self):
        self._said.append("zero_grad")

    def step(self):
        self._said.append("step")


class Scheduler:
    def __init__(self, said):
        self._said = said

    def step(self):
        self._said.append("adjust")


def double(inputs):
    return 2 * inputs


def computed(main, batch, point, mode="train", **given):
    """Return the outputs and the loss after one point of the main callback."""
    with Loop([main], model=double, criterion=lambda outputs, targets: outputs - targets, **given) as run:
        for _ in run.batches([batch], mode=mode):
            run.fire(point)
            return run.outputs, run.loss


def test_both_spellings_name_the_same_class():
    assert MainCallBack is MainCallback


@pytest.mark.parametrize(
    ("mode", "point"), [("train", "on_train_forward"), ("val", "on_val_forward"), ("train", "on_iter_forward")]
)
def test_a_forward_sets_outputs_and_loss(mode, point):
    assert computed(MainCallback(), (3, 1), point, mode) == (6, 5)


def test_a_prediction_sets_only_the_outputs():
    assert computed(MainCallback(), 3, "on_pred_forward", "pred") == (6, None)


@pytest.mark.parametrize(("mode", "point"), [("train", "on_train_forward"), ("val", "on_val_forward")])
def test_one_override_changes_the_forward_of_training_and_validation(mode, point):
    class Detector(MainCallback):
        def on_iter_forward(self, run):
            run.outputs, run.loss = "boxes", "loss"

    assert computed(Detector(), (3, 1), point, mode) == ("boxes", "loss")


def test_the_backward_zeroes_gradients_runs_backward_and_steps():
    said = []
    with Loop([MainCallback()], optimizer=Optimizer(said)) as run:
        for _ in run.batches([1]):
            run.loss = Loss(1.0, said)
            run.fire("on_iter_backward")
    assert said == ["zero_grad", "backward", "step"]


def test_the_learning_rate_is_adjusted_only_with_a_scheduler():
    said = []
    with Loop([MainCallback()], lr_scheduler=Scheduler(said)) as run:
        run.fire("on_lr_adjust")
    with Loop([MainCallback()]) as run:
        run.fire("on_lr_adjust")
    assert said == ["adjust"]


def test_the_main_attribute_of_hooks_is_the_main_callback_or_none():
    main = MainCallback()
    assert Hooks([Callback(), CallbackPipeline([main])]).main is main
    assert Hooks([Callback()]).main is None


def test_two_main_callbacks_raise_even_inside_a_pipeline():
    with pytest.raises(errors.MainPointTaken, match="two MainCallbacks: MainCallback and MainCallback#2"):
        Hooks([CallbackPipeline([MainCallback()]), MainCallback()])


def test_a_failing_main_callback_ends_the_run_despite_on_error_warn(train):
    class Fails(MainCallback):
        on_error = "warn"

        def on_train_forward(self, run):
            raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError, match="boom"):
        train([Fails()], body=lambda run: run.fire("on_train_forward"))


def test_a_main_callback_can_handle_other_points(train):
    class Main(MainCallback):
        def on_epoch_end(self, run):
            run.put("epoch", run.epoch)

    assert train([Main()]).get("epoch") == 1
