from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Callback, Runner
from hookpoint.callbacks import TerminateOnNaN
from hookpoint.core.errors import MissingMetric, NonFiniteLoss
from hookpoint.core.loop import Loop


class Ends(Callback):
    def __init__(self):
        self.points = []

    def on_epoch_end(self, run):
        self.points.append(("epoch", run.epoch_complete))

    def on_run_end(self):
        self.points.append("run")


def train(callback, losses, *, epochs=2, others=()):
    with Loop([callback, *others]) as run:
        for _ in run.epochs(epochs):
            for loss in run.batches(losses):
                run.loss = loss
    return run


def test_while_losses_are_numbers_it_does_nothing():
    assert train(TerminateOnNaN(), [1.0, 0.0, -5.0]).step == 6


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), (0.5, math.nan)])
def test_it_stops_after_the_step_and_the_end_points_run(bad):
    ends = Ends()
    run = train(TerminateOnNaN(), [1.0, bad, 1.0], others=[ends])
    assert run.step == 2
    assert ends.points == [("epoch", False), "run"]
    value = bad[1] if isinstance(bad, tuple) else float(bad)
    assert run._verdicts.reason == f"TerminateOnNaN: the loss is {value} at step 2"


def test_it_may_raise_instead():
    with pytest.raises(NonFiniteLoss):
        train(TerminateOnNaN(raise_error=True), [math.nan])


def test_without_any_loss_it_says_so():
    with pytest.raises(MissingMetric, match=r"^TerminateOnNaN reads 'loss'"):
        train(TerminateOnNaN(), [None])


def test_a_second_run_starts_anew():
    callback = TerminateOnNaN()
    assert train(callback, [math.nan]).step == 1
    assert train(callback, [1.0]).step == 2


def test_in_a_runner():
    model, data = torch.nn.Linear(1, 1), torch.ones(8, 1)
    data[5] = math.nan
    batches = [(part, part) for part in data.split(2)]
    options = {"callbacks": [TerminateOnNaN()], "monitors": [], "extra_callbacks": []}
    run = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), **options).fit(batches, epochs=3)
    assert run.step == 3
