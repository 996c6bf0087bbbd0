"""`self.model.stop_training = True` stops a run, as it does in Keras."""

from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Loop, Runner
from hookpoint import callbacks as cb


class Model:
    pass


class Stops(Callback):
    """The idiom of Keras."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_epoch_end(self, epoch, logs):
        if epoch == self.at:
            self.model.stop_training = True


class StopsInEpoch(Callback):
    def on_train_batch_end(self, batch, logs):
        if self.trainer.iteration == 4:
            self.model.stop_training = True


def trained(model, *callbacks, epochs=5, **options):
    with Loop(callbacks, model=model, extra_callbacks=[], monitors=[], **options) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches("abc"):
                pass
    return run


def test_stop_training_at_the_end_of_an_epoch_stops_the_run():
    run = trained(Model(), Stops(at=2))
    assert (run.epoch, run.iteration, run.stop_reason) == (2, 6, "model.stop_training was set")


def test_stop_training_within_an_epoch_stops_the_run():
    run = trained(Model(), StopsInEpoch())
    assert (run.epoch, run.iteration) == (2, 4)
    assert not run.epoch_complete


def test_the_next_run_clears_stop_training():
    model = Model()
    trained(model, Stops(at=1))
    assert model.stop_training
    run = trained(model, Stops(at=3))
    assert run.epoch == 3


def test_stop_training_is_ignored_without_a_user_callback():
    model = Model()
    with Loop([cb.MaxSteps(100)], model=model, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("abc"):
                model.stop_training = True
    assert (run.epoch, run.stop_reason) == (2, None)


def test_a_false_stop_training_attribute_is_left_unchanged():
    model = Model()
    model.stop_training = False
    trained(model, Stops(at=9), epochs=1)
    assert model.stop_training is False


def test_setting_stop_training_to_false_does_not_stop_the_run():
    model = Model()

    class Says(Callback):
        def on_epoch_end(self):
            self.model.stop_training = False

    assert trained(model, Says(), epochs=2).epoch == 2


class Wrapper(torch.nn.Module):
    """Like DistributedDataParallel, keeps the model in `module`."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class StopsInner(Callback):
    def on_epoch_end(self):
        inner = getattr(self.model, "module", self.model)
        inner.stop_training = True


@pytest.mark.parametrize("wrap", [lambda model: model, Wrapper, lambda model: torch.compile(model, backend="eager")])
def test_stop_training_on_a_wrapped_model_stops_the_run(wrap):
    run = trained(wrap(torch.nn.Linear(1, 1)), StopsInner())
    assert run.epoch == 1


@pytest.mark.parametrize("models", [{0: Model(), 1: Model()}, [Model(), Model()]])
def test_stop_training_on_one_of_several_models_stops_the_run(models):
    class StopsOne(Callback):
        def on_epoch_end(self):
            self.model[1].stop_training = True

    assert trained(models, StopsOne()).epoch == 1


def test_stop_training_stops_a_runner():
    model = torch.nn.Linear(2, 1)
    data = [(torch.rand(2, 2), torch.rand(2, 1))] * 3
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.functional.mse_loss,
        callbacks=[Stops(at=2)],
        extra_callbacks=[],
        monitors=[],
        device="cpu",
    )
    assert runner.fit(data, epochs=5).epoch == 2
