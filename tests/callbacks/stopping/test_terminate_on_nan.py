from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Callback, Runner
from hookpoint.callbacks import LossMonitor, TerminateOnNaN
from hookpoint.core.errors import BadValue, MissingMetric, NonFiniteLoss


class Ends(Callback):
    def __init__(self):
        self.points = []

    def on_epoch_end(self, run):
        self.points.append(("epoch", run.epoch_complete))

    def on_run_end(self):
        self.points.append("run")


def test_finite_losses_do_not_stop_the_run(train_on_losses):
    assert train_on_losses([TerminateOnNaN()], [1.0, 0.0, -5.0], epochs=2).step == 6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), (0.5, math.nan)])
def test_a_nonfinite_loss_stops_the_run_and_end_points_still_fire(train_on_losses, bad):
    ends = Ends()
    run = train_on_losses([TerminateOnNaN(), ends], [1.0, bad, 1.0], epochs=2)
    assert run.step == 2
    assert ends.points == [("epoch", False), "run"]
    value = bad[1] if isinstance(bad, tuple) else float(bad)
    assert run._verdicts.reason == f"TerminateOnNaN: the loss is {value} at step 2"


def test_raise_error_raises_instead_of_stopping(train_on_losses):
    with pytest.raises(NonFiniteLoss):
        train_on_losses([TerminateOnNaN(raise_error=True)], [math.nan], epochs=2)


def test_a_run_without_a_loss_raises(train_on_losses):
    with pytest.raises(MissingMetric, match=r"^TerminateOnNaN reads 'loss'"):
        train_on_losses([TerminateOnNaN()], [None], epochs=2)


def test_a_second_run_starts_from_scratch(train_on_losses):
    callback = TerminateOnNaN()
    assert train_on_losses([callback], [math.nan], epochs=2).step == 1
    assert train_on_losses([callback], [1.0], epochs=2).step == 2


def test_a_nonfinite_loss_stops_a_runner():
    model, data = torch.nn.Linear(1, 1), torch.ones(8, 1)
    data[5] = math.nan
    batches = [(part, part) for part in data.split(2)]
    options = {"callbacks": [TerminateOnNaN()], "monitors": [], "extra_callbacks": []}
    run = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), **options).fit(batches, epochs=3)
    assert run.step == 3


@pytest.mark.parametrize("callback", [TerminateOnNaN, LossMonitor])
@pytest.mark.parametrize("loss", [("mse", 0.5), {"kind": "mse", "value": 0.5}, "mse"])
def test_a_loss_that_contains_a_string_raises_at_its_step(train, callback, loss):
    def step(run, batch):
        run.loss = loss

    with pytest.raises(BadValue) as caught:
        train([callback()], step=step)
    assert str(caught.value) == ("run.loss must be a number, a tensor, or a tuple, list or dict of them, got 'mse'.")
    assert "(step 1, rank 0)" in caught.value.__notes__[0]
