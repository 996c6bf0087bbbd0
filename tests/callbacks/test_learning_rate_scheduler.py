from __future__ import annotations

import functools

import numpy
import pytest
import torch

from hookpoint import Runner
from hookpoint.callbacks import LearningRateScheduler, ModelSaver
from hookpoint.core.errors import BadValue
from hookpoint.core.loop import Loop


def sgd(*rates):
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates or (1.0,)])


def train(scheduler, *, epochs, batches=1, optimizer=None, others=(), cut_at=None, **given):
    seen, optimizer = [], optimizer or sgd()
    with Loop([scheduler, *others], optimizer=optimizer, **given) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(batches)):
                seen.append(run.hyper["lr"])
                optimizer.step()
                if run.step == cut_at:
                    run.stop("cut")
    return seen


def test_epochs_count_from_0_and_the_rate_is_the_present_one():
    asked = []

    def schedule(epoch, rate):
        asked.append((epoch, rate))
        return rate if epoch < 2 else rate / 2

    assert train(LearningRateScheduler(schedule), epochs=4) == [1.0, 1.0, 0.5, 0.25]
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
def test_functions_of_all_kinds(schedule):
    assert train(LearningRateScheduler(schedule), epochs=2) == [1.0, 0.5]


def test_a_type_error_inside_is_not_mistaken_for_a_function_of_one_argument():
    with pytest.raises(TypeError, match="unsupported operand"):
        train(LearningRateScheduler(lambda epoch, rate: rate + "x"), epochs=1)


@pytest.mark.parametrize("schedule", [lambda epoch: 0.5, lambda epoch, rate: 0.5 * rate])
def test_other_groups_keep_their_ratios(schedule):
    optimizer = sgd(1.0, 0.25)
    train(LearningRateScheduler(schedule), epochs=1, optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.125]


@pytest.mark.parametrize("cut_at", [2, 3, 4, 5])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_one(disk, cut_at):
    def make():
        return LearningRateScheduler(lambda epoch, rate: rate / 2)

    whole = train(make(), epochs=4, batches=2)
    first = train(make(), epochs=4, batches=2, store=disk, others=[ModelSaver()], cut_at=cut_at)
    assert first + train(make(), epochs=4, batches=2, store=disk, others=[ModelSaver()]) == whole


def test_a_second_run_starts_anew():
    scheduler = LearningRateScheduler(lambda epoch: 1 / (epoch + 1))
    assert train(scheduler, epochs=2) == train(scheduler, epochs=2) == [1.0, 0.5]


def test_each_change_is_printed_if_wanted(capsys):
    train(LearningRateScheduler(lambda epoch: [1.0, 0.5, 0.5][epoch], verbose=1), epochs=3)
    assert capsys.readouterr().err == "epoch 2: LearningRateScheduler sets learning_rate to 0.5\n"


@pytest.mark.parametrize(
    ("returned", "says"), [(None, "returned None for epoch 0"), ("0.1", "finite number"), (float("nan"), "finite")]
)
def test_what_is_no_number_is_refused(returned, says):
    with pytest.raises(BadValue, match=says):
        train(LearningRateScheduler(lambda epoch, rate: returned), epochs=1)


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"takes a function, not 0\.1"):
        LearningRateScheduler(0.1)


def test_the_rate_is_logged_once_in_a_loop_and_in_a_runner():
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


def test_a_function_of_the_rate_and_the_step_is_refused():
    with pytest.raises(TypeError) as caught:
        LearningRateScheduler(lambda lr, cur_step_num: lr)
    assert str(caught.value) == (
        "LearningRateScheduler calls schedule(epoch, lr), and this one takes 'lr' first.\n"
        "  write     lambda epoch, lr: ...\n"
        "  use       ScheduledHyperParamSetter(..., step_based=True) for each step"
    )
