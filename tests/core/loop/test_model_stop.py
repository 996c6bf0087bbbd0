"""`self.model.stop_training = True` stops a run, as it does in Keras."""

from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Loop, Runner
from hookpoint import callbacks as cb


class Model:
    pass


class Stops(Callback):
    """Keras's own idiom."""

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


def test_at_the_end_of_an_epoch():
    run = trained(Model(), Stops(at=2))
    assert (run.epoch, run.iteration, run.stop_reason) == (2, 6, "model.stop_training was set")


def test_in_the_middle_of_an_epoch():
    run = trained(Model(), StopsInEpoch())
    assert (run.epoch, run.iteration) == (2, 4)
    assert not run.epoch_complete


def test_the_next_run_begins_without_it():
    model = Model()
    trained(model, Stops(at=1))
    assert model.stop_training
    run = trained(model, Stops(at=3))
    assert run.epoch == 3


def test_without_a_callback_of_the_users_nobody_looks():
    model = Model()
    with Loop([cb.MaxSteps(100)], model=model, extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("abc"):
                model.stop_training = True
    assert (run.epoch, run.stop_reason) == (2, None)


def test_an_attribute_of_the_model_that_is_not_true_is_left_alone():
    model = Model()
    model.stop_training = False
    trained(model, Stops(at=9), epochs=1)
    assert model.stop_training is False


def test_only_true_stops():
    model = Model()

    class Says(Callback):
        def on_epoch_end(self):
            self.model.stop_training = False

    assert trained(model, Says(), epochs=2).epoch == 2


class Wrapper(torch.nn.Module):
    """As DistributedDataParallel: the model is inside, under `module`."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class StopsInner(Callback):
    def on_epoch_end(self):
        inner = getattr(self.model, "module", self.model)
        inner.stop_training = True


@pytest.mark.parametrize("wrap", [lambda model: model, Wrapper, lambda model: torch.compile(model, backend="eager")])
def test_the_model_inside_of_a_wrapper(wrap):
    run = trained(wrap(torch.nn.Linear(1, 1)), StopsInner())
    assert run.epoch == 1


@pytest.mark.parametrize("models", [{0: Model(), 1: Model()}, [Model(), Model()]])
def test_one_of_several_models(models):
    class StopsOne(Callback):
        def on_epoch_end(self):
            self.model[1].stop_training = True

    assert trained(models, StopsOne()).epoch == 1


def test_in_a_runner():
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
