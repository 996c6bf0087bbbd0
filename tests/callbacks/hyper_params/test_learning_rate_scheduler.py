from __future__ import annotations

import functools

import numpy
import pytest
import torch

from hookpoint import Runner
from hookpoint.callbacks import LearningRateScheduler, ModelSaver
from hookpoint.core.errors import BadValue
from hookpoint.core.loop.loop import Loop


def test_the_schedule_gets_epochs_from_0_and_the_current_rate(rates_of_steps):
    asked = []

    def schedule(epoch, rate):
        asked.append((epoch, rate))
        return rate if epoch < 2 else rate / 2

    assert rates_of_steps([LearningRateScheduler(schedule)], epochs=4) == [1.0, 1.0, 0.5, 0.25]
    assert asked == [(0, 1.0), (1, 1.0), (2, 1.0), (3, 0.5)]


@pytest.mark.parametrize(
    "schedule",
    [
        lambda epoch: 1 / (epoch + 1),
        functools.partial(lambda scale, epoch: scale / (epoch + 1), 1.0),
        lambda epoch, rate=None: numpy.float32(1 / (epoch + 1)),
        lambda *epoch_and_rate: 1 / (epoch_and_rate[0] + 1),
    ],
)
def test_functions_of_all_kinds_are_accepted(rates_of_steps, schedule):
    assert rates_of_steps([LearningRateScheduler(schedule)], epochs=2) == [1.0, 0.5]


def test_a_type_error_in_the_schedule_is_raised(rates_of_steps):
    with pytest.raises(TypeError, match="unsupported operand"):
        rates_of_steps([LearningRateScheduler(lambda epoch, rate: rate + "x")], epochs=1)


@pytest.mark.parametrize("schedule", [lambda epoch: 0.5, lambda epoch, rate: 0.5 * rate])
def test_other_groups_keep_their_ratios(rates_of_steps, sgd, schedule):
    optimizer = sgd(1.0, 0.25)
    rates_of_steps([LearningRateScheduler(schedule)], epochs=1, optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.125]


@pytest.mark.parametrize("cut_at", [2, 3, 4, 5])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_run(rates_of_steps, disk, cut_at):
    def make():
        return LearningRateScheduler(lambda epoch, rate: rate / 2)

    whole = rates_of_steps([make()], epochs=4, batches=2)
    first = rates_of_steps([make(), ModelSaver()], epochs=4, batches=2, store=disk, stop_at=cut_at)
    assert first + rates_of_steps([make(), ModelSaver()], epochs=4, batches=2, store=disk) == whole


def test_a_second_run_starts_from_scratch(rates_of_steps):
    scheduler = LearningRateScheduler(lambda epoch: 1 / (epoch + 1))
    assert rates_of_steps([scheduler], epochs=2) == rates_of_steps([scheduler], epochs=2) == [1.0, 0.5]


def test_verbose_prints_each_change(rates_of_steps, capsys):
    rates_of_steps([LearningRateScheduler(lambda epoch: [1.0, 0.5, 0.5][epoch], verbose=1)], epochs=3)
    assert capsys.readouterr().err == "epoch 2: LearningRateScheduler sets learning_rate to 0.5\n"


@pytest.mark.parametrize(
    ("returned", "says"), [(None, "returned None for epoch 0"), ("0.1", "finite number"), (float("nan"), "finite")]
)
def test_a_returned_value_that_is_not_a_finite_number_raises(rates_of_steps, returned, says):
    with pytest.raises(BadValue, match=says):
        rates_of_steps([LearningRateScheduler(lambda epoch, rate: returned)], epochs=1)


def test_a_schedule_that_is_not_a_function_raises():
    with pytest.raises(TypeError, match=r"must be a function, got 0\.1"):
        LearningRateScheduler(0.1)


def test_the_rate_is_logged_once_per_epoch(sgd):
    scheduler = LearningRateScheduler(lambda epoch: 1 / (epoch + 1))
    with Loop([scheduler], optimizer=sgd()) as run:
        for _ in run.epochs(2):
            pass
    assert [value for _, value in run.monitors.get_history("learning_rate")] == [1.0, 0.5]
    model = torch.nn.Linear(2, 1)
    options = {"callbacks": [scheduler], "monitors": [], "extra_callbacks": []}
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=1.0), torch.nn.MSELoss(), **options)
    run = runner.fit((torch.zeros(4, 2), torch.zeros(4, 1)), epochs=2, batch_size=4)
    assert [value for _, value in run.monitors.get_history("learning_rate")] == [1.0, 0.5]


def test_a_function_of_the_rate_and_the_step_raises():
    with pytest.raises(TypeError) as caught:
        LearningRateScheduler(lambda lr, cur_step_num: lr)
    assert str(caught.value) == (
        "LearningRateScheduler calls schedule(epoch, lr), but the first parameter of your function is 'lr'.\n"
        "  write     lambda epoch, lr: ...\n"
        "  use       ScheduledHyperParamSetter(..., step_based=True) for each step"
    )
