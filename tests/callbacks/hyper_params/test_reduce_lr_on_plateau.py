from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Callback, Every, Runner
from hookpoint.callbacks import ModelSaver, ReduceLROnPlateau
from hookpoint.callbacks.hyper_params.reduce_lr_on_plateau import Plateau
from hookpoint.core.errors import MissingMetric
from hookpoint.core.loop.loop import Loop

LOSS = [4.0, 3.0, 3.0, 3.0, 2.0, 2.0, math.nan, 2.5, 2.5, 2.5]


def test_min_delta_can_be_relative_to_the_best_value(rates_of_epochs):
    relative = ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.01, min_delta_mode="rel")
    assert rates_of_epochs([relative], [0.100, 0.098, 0.0979]) == [1.0, 1.0, 0.5]
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.01)], [0.100, 0.098]) == [1.0, 0.5]


def test_the_rate_is_reduced_when_the_metric_stops_improving(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=2)], LOSS) == [
        1.0,
        1.0,
        1.0,
        0.5,
        0.5,
        0.5,
        0.25,
        0.25,
        0.125,
        0.125,
    ]


def test_an_infinite_first_value_is_improved_by_a_finite_value(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=2)], [math.inf, math.inf, 5.0, 4.0]) == [1.0] * 4


def test_the_rate_is_not_reduced_below_min_lr(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.375)], [1.0] * 4) == [1.0, 0.5, 0.375, 0.375]


def test_a_rate_below_min_lr_does_not_change(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, min_lr=2.0)], [1.0] * 3) == [1.0, 1.0, 1.0]


def test_the_cooldown_starts_only_with_a_reduction(rates_of_epochs):
    callback = ReduceLROnPlateau(factor=0.5, patience=1, min_lr=1.0, cooldown=3)
    rates_of_epochs([callback], [1.0] * 4)
    assert callback.state_dict()["cools_for"] == 0
    assert callback.state_dict()["waited"] == 3


def test_other_groups_keep_their_ratios(rates_of_epochs, sgd):
    optimizer = sgd(1.0, 0.5, 0.25)
    rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.375)], [1.0] * 3, optimizer=optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.375, 0.1875, 0.09375]


@pytest.mark.parametrize(
    ("param", "rates"),
    [("learning_rate", [0.5, 0.25, 1.0]), ("lr@critic", [1.0, 0.5, 1.0]), ("lr@1", [1.0, 0.25, 2.0])],
)
def test_rates_of_several_optimizers_keep_their_ratios(param, rates):
    actor = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in (1.0, 0.5)])
    optimizers = {"actor": actor, "critic": torch.optim.SGD([torch.zeros(1)], lr=2.0)}
    with Loop([ReduceLROnPlateau(factor=0.5, patience=1, param=param)], optimizer=optimizers) as run:
        for _ in run.epochs(2):
            run.log(val_loss=1.0)
    assert [group["lr"] for one in optimizers.values() for group in one.param_groups] == rates


def test_the_default_mode_comes_from_the_metric_name(rates_of_epochs):
    losses = [1.0, 2.0, 3.0]
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1)], losses) == [1.0, 0.5, 0.25]
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, mode="max")], losses) == [1.0, 1.0, 1.0]


def test_an_epoch_without_a_value_does_not_count(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=2)], [1.0, None, 1.0, None, 1.0]) == [
        1.0,
        1.0,
        1.0,
        1.0,
        0.5,
    ]


def test_nan_is_never_the_best_value(rates_of_epochs):
    assert rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=2)], [math.nan, 5.0, 4.0, 3.0]) == [1.0] * 4


@pytest.mark.parametrize("cut", range(1, len(LOSS)))
@pytest.mark.parametrize("cooldown", [0, 2])
def test_a_resumed_run_decides_like_an_uninterrupted_run(rates_of_epochs, disk, cut, cooldown):
    def make():
        return ReduceLROnPlateau(factor=0.5, patience=2, cooldown=cooldown)

    first = rates_of_epochs([make(), ModelSaver()], LOSS[:cut], store=disk)
    assert first + rates_of_epochs([make(), ModelSaver()], LOSS, store=disk) == rates_of_epochs([make()], LOSS)


def test_a_second_run_starts_from_scratch(rates_of_epochs):
    callback = ReduceLROnPlateau(factor=0.5, patience=2)
    assert rates_of_epochs([callback], [0.5, 0.5]) == rates_of_epochs([callback], [1.0, 1.0]) == [1.0, 1.0]


def test_a_reduction_is_recorded_and_verbose_prints_it(rates_of_epochs, capsys):
    class Events(Callback):
        def __init__(self):
            self.changes = []

        def on_records(self, records):
            self.changes += [record.values["setting"] for record in records if "setting" in record.values]

    events = Events()
    rates_of_epochs([ReduceLROnPlateau(factor=0.5, patience=1, verbose=1), events], [1.0, 1.0])
    by = "ReduceLROnPlateau(val_loss)"
    assert events.changes == [{"param": "learning_rate", "value": 0.5, "previous": 1.0, "by": by}]
    assert capsys.readouterr().err == f"epoch 2: {by} reduces learning_rate to 0.5\n"


def test_the_logged_rate_is_the_rate_the_epoch_was_trained_with():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    with Loop([ReduceLROnPlateau(factor=0.5, patience=1)], optimizer=optimizer) as run:
        for _ in run.epochs(3):
            run.log(val_loss=1.0)
    assert [value for _, value in run.monitors.get_history("learning_rate")] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"factor": 1.0}, "factor must be between 0 and 1"),
        ({"factor": 0.0}, "factor must be between 0 and 1"),
        ({"factor": "a"}, "factor must be a finite number, got 'a'"),
        ({"patience": -1}, "patience must be an integer >= 0, got -1"),
        ({"patience": 1.5}, "patience must be an integer >= 0, got 1.5"),
        ({"cooldown": -1}, "cooldown must be an integer >= 0, got -1"),
        ({"min_delta": -1}, "min_delta must be a finite number >= 0, got -1"),
        ({"min_lr": -1}, "min_lr must be a finite number >= 0, got -1"),
        ({"mode": "least"}, "got 'least'"),
        ({"monitor": "thing"}, "is ambiguous"),
    ],
)
def test_invalid_arguments_raise(options, says):
    with pytest.raises(ValueError, match=says):
        ReduceLROnPlateau(**options)


def test_a_metric_that_is_never_logged_raises(rates_of_epochs):
    with pytest.raises(MissingMetric, match=r"^ReduceLROnPlateau\(loss\) reads 'loss'"):
        rates_of_epochs([ReduceLROnPlateau("loss")], [None, None])


def test_a_schedule_within_epochs_follows_validations_within_epochs():
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = (torch.zeros(8, 2), torch.zeros(8, 1))  # nothing to learn: the loss is 0 from the start
    callback = ReduceLROnPlateau(factor=0.5, patience=1).when(Every(steps=2))
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[callback], monitors=[], extra_callbacks=[])
    runner.fit(data, data, epochs=1, batch_size=1, validate_every=Every(steps=2))
    assert (
        optimizer.param_groups[0]["lr"] == 0.125
    )  # each validation comes before the trigger of its step; the first value is the best


# Plateau


def reductions(plateau, values):
    """Return the numbers of the values that cause a reduction."""
    found = []
    for number, value in enumerate(values, 1):
        if plateau.take(value, number):
            plateau.start_cooling()
            found.append(number)
    return found


@pytest.mark.parametrize(
    ("options", "values", "found"),
    [
        ({"patience": 2}, [3.0, 2.0, 2.0, 2.0, 2.0, 2.0], [4, 6]),
        ({"patience": 0}, [3.0, 2.0, 2.0, 1.0, 1.5], [3, 5]),
        ({"patience": 1}, [3.0, 2.0, 2.0, 1.0, 1.5], [3, 5]),  # as in Keras, where 0 and 1 mean the same
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.75, 2.25, 1.75], [2, 4]),
        (
            {"patience": 1, "cooldown": 1},
            [1.0] * 4,
            [2, 3, 4],
        ),  # the value that causes a reduction is the first of the cooldown
        ({"patience": 1, "cooldown": 2}, [1.0] * 8, [2, 4, 6, 8]),
        ({"patience": 2, "cooldown": 1}, [1.0] * 8, [3, 5, 7]),
        ({"patience": 1}, [math.nan, 1.0, math.nan, 0.5], [1, 3]),
        ({"patience": 1}, [0.0, 0.0], [2]),
        ({"patience": 2}, [math.inf, math.inf, 5.0, 4.0], []),
        ({"patience": 1}, [math.nan, math.inf, math.inf, 5.0], [1, 3]),
    ],
)
def test_a_reduction_is_due_after_patience_values_without_improvement(options, values, found):
    assert reductions(Plateau("min", **options), values) == found
    assert reductions(Plateau("max", **options), [-value for value in values]) == found


def test_a_reduction_stays_due_until_it_is_made():
    plateau = Plateau("min", patience=2)
    assert [plateau.take(1.0, step) for step in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("cut", range(9))
def test_the_state_restores_a_plateau_completely(cut):
    values = [3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    options = {"patience": 2, "cooldown": 1}
    first, second = Plateau("min", **options), Plateau("min", **options)
    found = reductions(first, values[:cut])
    second.load_state_dict(first.state_dict())
    assert found + [cut + number for number in reductions(second, values[cut:])] == reductions(
        Plateau("min", **options), values
    )
