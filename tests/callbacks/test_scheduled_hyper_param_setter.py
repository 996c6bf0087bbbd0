from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from hookpoint import Callback, Every, ObjAttrParam, Runner
from hookpoint.callbacks import ModelSaver, ScheduledHyperParamSetter
from hookpoint.core.errors import BadSchedule, UnknownSetting
from hookpoint.core.loop import Loop


def sgd(rate=1.0):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)


class Rates(Callback):
    """Notes the rate each iteration is trained with."""

    def __init__(self):
        self.seen = []

    def on_train_iter_begin(self, run):
        self.seen.append(run.hyper["lr"])


def train(disk, setter, *, epochs, batches=2, optimizer=None, cut_at=None, **given):
    """Bring the run on the disk to so many epochs, of so many steps each; return the rate of each step made here."""
    rates, optimizer = Rates(), optimizer or sgd()
    with Loop([setter, rates, *given.pop("others", [])], optimizer=optimizer, store=disk, **given) as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(range(batches)):
                optimizer.step()
                if run.step == cut_at:
                    run.stop("cut")
    return rates.seen


def test_a_value_applies_when_its_epoch_is_over(disk):
    assert train(disk, ScheduledHyperParamSetter("learning_rate", [(1, 0.5), (3, 0.25)]), epochs=4, batches=1) == [
        1.0,
        0.5,
        0.5,
        0.25,
    ]


def test_epoch_0_is_before_training(disk):
    assert train(disk, ScheduledHyperParamSetter("lr", [(0, 0.5)]), epochs=2, batches=1) == [0.5, 0.5]


def test_a_scheduled_zero_counts(disk):
    assert train(disk, ScheduledHyperParamSetter("lr", [(0, 0.0), (2, 1.0)]), epochs=3, batches=1) == [0.0, 0.0, 1.0]


def test_linear_by_epochs(disk):
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (4, 0.0)], interp="linear")
    assert train(disk, setter, epochs=6, batches=1) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_by_steps(disk):
    setter = ScheduledHyperParamSetter("lr", [(0, 0.5), (1, 0.25), (4, 0.125)], step_based=True)
    assert train(disk, setter, epochs=2, batches=3) == [0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


def test_linear_by_steps(disk):
    setter = ScheduledHyperParamSetter("lr", [(1, 1.0), (5, 0.0)], interp="linear", step_based=True)
    assert train(disk, setter, epochs=2, batches=4) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]


def test_another_rhythm(disk):
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (4, 0.0)], interp="linear", step_based=True).when(Every(steps=2))
    assert train(disk, setter, epochs=1, batches=6) == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]


def test_an_epoch_that_was_cut_short_is_over_as_well():
    optimizer, rates = sgd(), Rates()
    with Loop([ScheduledHyperParamSetter("lr", [(1, 0.5)]), rates], optimizer=optimizer) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                break
    assert rates.seen == [1.0, 0.5]


def test_others_may_change_it_between_points(disk):
    class Meddles(Callback):
        def on_epoch_begin(self, run):
            if run.epoch == 3:
                run.hyper["lr"] = 7.0

    setter = ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)])
    assert train(disk, setter, epochs=5, batches=1, others=[Meddles()]) == [1.0, 0.5, 7.0, 7.0, 0.25]


# Resuming

SCHEDULES = {
    "points": ([(0, 0.9), (1, 0.5), (3, 0.25)], {}),
    "linear": ([(1, 1.0), (4, 0.0)], {"interp": "linear"}),
    "steps": ([(0, 0.9), (2, 0.5), (5, 0.25), (7, 0.125)], {"step_based": True}),
    "linear steps": ([(1, 1.0), (9, 0.0)], {"interp": "linear", "step_based": True}),
}


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.parametrize("cut_at", [1, 2, 3, 4, 5, 8])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_one(disk, case, cut_at):
    points, options = SCHEDULES[case]
    whole = train(type(disk)(), ScheduledHyperParamSetter("lr", points, **options), epochs=5)
    saver = ModelSaver()
    first = train(disk, ScheduledHyperParamSetter("lr", points, **options), epochs=5, cut_at=cut_at, others=[saver])
    second = train(disk, ScheduledHyperParamSetter("lr", points, **options), epochs=5, others=[ModelSaver()])
    assert first + second == whole


def test_the_restored_value_stands_after_an_exact_resume(disk):
    class Human(Callback):
        def on_epoch_end(self, run):
            run.hyper["lr"] = 7.0

    train(disk, ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)]), epochs=2, others=[Human(), ModelSaver()])
    again = train(disk, ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)]), epochs=5, batches=1, others=[ModelSaver()])
    assert again == [7.0, 7.0, 0.25]


@pytest.mark.parametrize("cut_at", [6, 7])  # between epochs, and inside of one
@pytest.mark.parametrize(
    ("points", "options", "value"),
    [([(1, 0.5), (9, 0.25)], {}, 0.5), ([(0, 1.0), (3, 0.5), (9, 0.25)], {"step_based": True}, 0.5)],
)
def test_a_run_that_goes_on_without_its_state_gets_the_value_that_should_hold(disk, cut_at, points, options, value):
    train(disk, ModelSaver(), epochs=5, cut_at=cut_at)
    rates = train(disk, ScheduledHyperParamSetter("lr", points, **options), epochs=5, others=[ModelSaver()])
    assert rates[0] == value


def test_a_setting_that_is_not_the_optimizers_is_restored_too(disk):
    points = [(1, 0.25), (3, 0.125)]

    def dropouts(epochs):
        thing, seen = SimpleNamespace(dropout=0.5), []
        with Loop([ScheduledHyperParamSetter(ObjAttrParam(thing, "dropout"), points), ModelSaver()], store=disk) as run:
            for _ in run.epochs(epochs):
                seen += [thing.dropout for _ in run.batches(range(1))]
        return seen

    assert dropouts(2) + dropouts(5) == [0.5, 0.25, 0.25, 0.125, 0.125]


def test_a_fresh_run_starts_anew(disk):
    setter = ScheduledHyperParamSetter("lr", [(0, 0.5), (1, 0.25)])
    for store in (disk, type(disk)()):
        assert train(store, setter, epochs=2, batches=1) == [0.5, 0.25]


# Words and mistakes


def test_events_of_linear_steps_come_once_per_epoch(disk):
    class Events(Callback):
        def __init__(self):
            self.values = []

        def on_records(self, records):
            self.values += [record.values["setting"]["value"] for record in records if "setting" in record.values]

    events = Events()
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (8, 0.0)], interp="linear", step_based=True)
    train(disk, setter, epochs=2, batches=4, others=[events])
    assert events.values == [0.875, 0.375]


def test_its_name_says_what_it_sets():
    assert ScheduledHyperParamSetter("learning_rate", [(0, 1.0)]).name == "ScheduledHyperParamSetter(learning_rate)"
    assert ScheduledHyperParamSetter("lr", [(0, 1.0)], name="mine").name == "mine"


def test_mistakes_are_refused(disk):
    with pytest.raises(BadSchedule, match="is empty"):
        ScheduledHyperParamSetter("lr", [])
    with pytest.raises(BadSchedule, match="choose"):
        ScheduledHyperParamSetter("lr", [(0, 1.0)], interp="cubic")
    with pytest.raises(UnknownSetting):
        train(disk, ScheduledHyperParamSetter("dropout", [(0, 1.0)]), epochs=1)


def test_with_a_runner(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer, rates = torch.optim.SGD(model.parameters(), lr=1.0), Rates()
    setter = ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (2, 0.0)], interp="linear")
    data = (torch.randn(8, 2), torch.randn(8, 1))
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[setter, rates], monitors=[], extra_callbacks=[])
    runner.fit(data, epochs=3, batch_size=4)
    assert rates.seen == [0.5, 0.5, 0.25, 0.25, 0.0, 0.0]
