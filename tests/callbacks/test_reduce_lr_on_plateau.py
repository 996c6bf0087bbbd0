from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Callback, Every, Runner
from hookpoint.callbacks import ModelSaver, ReduceLROnPlateau
from hookpoint.core.errors import MissingMetric
from hookpoint.core.loop import Loop

LOSS = [4.0, 3.0, 3.0, 3.0, 2.0, 2.0, math.nan, 2.5, 2.5, 2.5]


def train(callback, losses, others=(), rates=(1.0,), **given):
    """Run an epoch for each value of val_loss, None for none; return the first group's rate after each epoch."""
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates])
    after = []
    with Loop([callback, *others], optimizer=optimizer, **given) as run:
        for epoch in run.epochs(len(losses)):
            after.append(run.hyper["lr"])
            if losses[epoch - 1] is not None:
                run.log(val_loss=losses[epoch - 1])
    train.rates = [group["lr"] for group in optimizer.param_groups]
    return [*after[1:], train.rates[0]] if after else []


def test_it_reduces_when_the_metric_no_longer_gets_better():
    assert train(ReduceLROnPlateau(factor=0.5, patience=2), LOSS) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_an_infinite_value_is_a_first_best():
    assert train(ReduceLROnPlateau(factor=0.5, patience=2), [math.inf, math.inf, 5.0, 4.0]) == [1.0] * 4


def test_not_below_its_least():
    assert train(ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.375), [1.0] * 4) == [1.0, 0.5, 0.375, 0.375]


def test_a_rate_below_the_least_is_left_alone():
    assert train(ReduceLROnPlateau(factor=0.5, patience=1, min_lr=2.0), [1.0] * 3) == [1.0, 1.0, 1.0]


def test_no_cooldown_without_a_reduction():
    callback = ReduceLROnPlateau(factor=0.5, patience=1, min_lr=1.0, cooldown=3)
    train(callback, [1.0] * 4)
    assert callback.state_dict()["cools_for"] == 0
    assert callback.state_dict()["waited"] == 3


def test_the_first_group_is_reduced_and_the_others_keep_their_ratios():
    train(ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.375), [1.0] * 3, rates=(1.0, 0.5, 0.25))
    assert train.rates == [0.375, 0.1875, 0.09375]


@pytest.mark.parametrize(
    ("param", "rates"),
    [("learning_rate", [0.5, 0.25, 1.0]), ("lr@critic", [1.0, 0.5, 1.0]), ("lr@1", [1.0, 0.25, 2.0])],
)
def test_several_optimizers_keep_their_ratios(param, rates):
    actor = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in (1.0, 0.5)])
    optimizers = {"actor": actor, "critic": torch.optim.SGD([torch.zeros(1)], lr=2.0)}
    with Loop([ReduceLROnPlateau(factor=0.5, patience=1, param=param)], optimizer=optimizers) as run:
        for _ in run.epochs(2):
            run.log(val_loss=1.0)
    assert [group["lr"] for one in optimizers.values() for group in one.param_groups] == rates


def test_the_mode_goes_by_the_name():
    losses = [1.0, 2.0, 3.0]
    assert train(ReduceLROnPlateau(factor=0.5, patience=1), losses) == [1.0, 0.5, 0.25]
    assert train(ReduceLROnPlateau(factor=0.5, patience=1, mode="max"), losses) == [1.0, 1.0, 1.0]


def test_an_epoch_without_a_value_does_not_count():
    assert train(ReduceLROnPlateau(factor=0.5, patience=2), [1.0, None, 1.0, None, 1.0]) == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_nan_is_never_the_best():
    assert train(ReduceLROnPlateau(factor=0.5, patience=2), [math.nan, 5.0, 4.0, 3.0]) == [1.0] * 4


@pytest.mark.parametrize("cut", range(1, len(LOSS)))
@pytest.mark.parametrize("cooldown", [0, 2])
def test_a_resumed_run_decides_as_an_uninterrupted_one(disk, cut, cooldown):
    def make():
        return ReduceLROnPlateau(factor=0.5, patience=2, cooldown=cooldown)

    first = train(make(), LOSS[:cut], [ModelSaver()], store=disk)
    assert first + train(make(), LOSS, [ModelSaver()], store=disk) == train(make(), LOSS)


def test_a_second_run_starts_anew():
    callback = ReduceLROnPlateau(factor=0.5, patience=2)
    assert train(callback, [0.5, 0.5]) == train(callback, [1.0, 1.0]) == [1.0, 1.0]


def test_a_reduction_is_an_event_and_printed_if_wanted(capsys):
    class Events(Callback):
        def __init__(self):
            self.changes = []

        def on_records(self, records):
            self.changes += [record.values["setting"] for record in records if "setting" in record.values]

    events = Events()
    train(ReduceLROnPlateau(factor=0.5, patience=1, verbose=1), [1.0, 1.0], [events])
    by = "ReduceLROnPlateau(val_loss)"
    assert events.changes == [{"param": "learning_rate", "value": 0.5, "previous": 1.0, "by": by}]
    assert capsys.readouterr().err == f"epoch 2: {by} reduces learning_rate to 0.5\n"


def test_the_rate_that_is_logged_is_the_one_the_epoch_was_trained_with():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with Loop([ReduceLROnPlateau(factor=0.5, patience=1)], optimizer=optimizer) as run:
        for _ in run.epochs(3):
            run.log(val_loss=1.0)
    assert [value for _, value in run.monitors.get_history("learning_rate")] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factor": 1.0}, "reduces nothing"),
        ({"factor": 0.0}, "reduces nothing"),
        ({"factor": "a"}, "factor='a'. means nothing"),
        ({"patience": -1}, "patience=-1. means nothing"),
        ({"patience": 1.5}, "patience=1.5. means nothing"),
        ({"cooldown": -1}, "cooldown=-1. means nothing"),
        ({"min_delta": -1}, "min_delta=-1. means nothing"),
        ({"min_lr": -1}, "min_lr=-1. means nothing"),
        ({"mode": "least"}, "mode='least'"),
        ({"monitor": "thing"}, "does not say whether less or more"),
    ],
)
def test_mistakes_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        ReduceLROnPlateau(**options)


def test_a_metric_that_never_comes_is_an_error():
    with pytest.raises(MissingMetric, match=r"^ReduceLROnPlateau\(loss\) reads 'loss'"):
        train(ReduceLROnPlateau("loss"), [None, None])


def test_with_a_runner_that_validates_within_epochs():
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = (torch.zeros(8, 2), torch.zeros(8, 1))  # nothing to learn: the loss is 0 from the start
    callback = ReduceLROnPlateau(factor=0.5, patience=1).when(Every(steps=2))
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[callback], monitors=[], extra_callbacks=[])
    runner.fit(data, data, epochs=1, batch_size=1, validate_every=Every(steps=2))
    assert optimizer.param_groups[0]["lr"] == 0.125  # a validation comes before the trigger of its step; the first is the best
