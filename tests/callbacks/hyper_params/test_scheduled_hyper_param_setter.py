from __future__ import annotations

import math
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hookpoint import Callback, Every, ObjAttrParam, Runner
from hookpoint.callbacks import ModelSaver, ScheduledHyperParamSetter
from hookpoint.callbacks.hyper_params.scheduled_hyper_param_setter import ValueSchedule
from hookpoint.core.errors import BadSchedule, UnknownSetting
from hookpoint.core.loop.loop import Loop


class Rates(Callback):
    """Record the rate that each iteration is trained with."""

    def __init__(self):
        self.seen = []

    def on_train_iter_begin(self, run):
        self.seen.append(run.hyper["lr"])


def test_a_value_applies_after_its_epoch(rates_of_steps):
    assert rates_of_steps([ScheduledHyperParamSetter("learning_rate", [(1, 0.5), (3, 0.25)])], epochs=4) == [
        1.0,
        0.5,
        0.5,
        0.25,
    ]


def test_epoch_0_sets_the_value_before_training(rates_of_steps):
    assert rates_of_steps([ScheduledHyperParamSetter("lr", [(0, 0.5)])], epochs=2) == [0.5, 0.5]


def test_a_scheduled_zero_is_applied(rates_of_steps):
    assert rates_of_steps([ScheduledHyperParamSetter("lr", [(0, 0.0), (2, 1.0)])], epochs=3) == [0.0, 0.0, 1.0]


def test_linear_interpolation_by_epochs(rates_of_steps):
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (4, 0.0)], interp="linear")
    assert rates_of_steps([setter], epochs=6) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_a_schedule_by_steps(rates_of_steps):
    setter = ScheduledHyperParamSetter("lr", [(0, 0.5), (1, 0.25), (4, 0.125)], step_based=True)
    assert rates_of_steps([setter], epochs=2, batches=3) == [0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


def test_linear_interpolation_by_steps(rates_of_steps):
    setter = ScheduledHyperParamSetter("lr", [(1, 1.0), (5, 0.0)], interp="linear", step_based=True)
    assert rates_of_steps([setter], epochs=2, batches=4) == [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("first", [2, 30])
def test_a_table_that_begins_after_the_last_epoch_warns(rates_of_steps, caplog, first):
    table = [(first, 0.5), (60, 0.25)]
    assert rates_of_steps([ScheduledHyperParamSetter("lr", table)], epochs=2) == [1.0, 1.0]
    problem = f"the first entry applies after epoch {first}, but the run ends after epoch 2"
    hint = "if the table contains steps, pass step_based=True"
    assert caplog.messages == [f"ScheduledHyperParamSetter(lr) changes nothing: {problem}; {hint}"]
    caplog.clear()
    assert rates_of_steps([ScheduledHyperParamSetter("lr", table, step_based=True)], epochs=2) == [1.0, 1.0]
    assert caplog.messages == []


def test_a_schedule_can_be_applied_every_n_steps(rates_of_steps):
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (4, 0.0)], interp="linear", step_based=True).when(Every(steps=2))
    assert rates_of_steps([setter], epochs=1, batches=6) == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0]


def test_an_epoch_that_ends_with_a_break_counts_as_finished(sgd):
    optimizer, rates = sgd(), Rates()
    with Loop([ScheduledHyperParamSetter("lr", [(1, 0.5)]), rates], optimizer=optimizer) as run:
        for _ in run.epochs(2):
            for _ in run.batches(range(3)):
                break
    assert rates.seen == [1.0, 0.5]


def test_other_callbacks_can_change_the_value_between_entries(rates_of_steps):
    class Meddles(Callback):
        def on_epoch_begin(self, run):
            if run.epoch == 3:
                run.hyper["lr"] = 7.0

    setter = ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)])
    assert rates_of_steps([setter, Meddles()], epochs=5) == [1.0, 0.5, 7.0, 7.0, 0.25]


# Resuming

SCHEDULES = {
    "points": ([(0, 0.9), (1, 0.5), (3, 0.25)], {}),
    "linear": ([(1, 1.0), (4, 0.0)], {"interp": "linear"}),
    "steps": ([(0, 0.9), (2, 0.5), (5, 0.25), (7, 0.125)], {"step_based": True}),
    "linear steps": ([(1, 1.0), (9, 0.0)], {"interp": "linear", "step_based": True}),
}


@pytest.mark.parametrize("case", SCHEDULES)
@pytest.mark.parametrize("cut_at", [1, 2, 3, 4, 5, 8])
def test_a_resumed_run_has_the_rates_of_an_uninterrupted_run(rates_of_steps, disk, new_disk, case, cut_at):
    points, options = SCHEDULES[case]
    whole = rates_of_steps([ScheduledHyperParamSetter("lr", points, **options)], epochs=5, batches=2, store=new_disk())
    saver = ModelSaver()
    first = rates_of_steps(
        [ScheduledHyperParamSetter("lr", points, **options), saver], epochs=5, stop_at=cut_at, batches=2, store=disk
    )
    second = rates_of_steps([ScheduledHyperParamSetter("lr", points, **options), ModelSaver()], epochs=5, batches=2, store=disk)
    assert first + second == whole


def test_the_restored_value_is_kept_after_an_exact_resume(rates_of_steps, disk):
    class Human(Callback):
        def on_epoch_end(self, run):
            run.hyper["lr"] = 7.0

    rates_of_steps(
        [ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)]), Human(), ModelSaver()], epochs=2, batches=2, store=disk
    )
    again = rates_of_steps([ScheduledHyperParamSetter("lr", [(1, 0.5), (4, 0.25)]), ModelSaver()], epochs=5, store=disk)
    assert again == [7.0, 7.0, 0.25]


@pytest.mark.parametrize("cut_at", [6, 7])  # between epochs and within an epoch
@pytest.mark.parametrize(
    ("points", "options", "value"),
    [([(1, 0.5), (9, 0.25)], {}, 0.5), ([(0, 1.0), (3, 0.5), (9, 0.25)], {"step_based": True}, 0.5)],
)
def test_a_run_resumed_without_saved_state_gets_the_scheduled_value(rates_of_steps, disk, cut_at, points, options, value):
    rates_of_steps([ModelSaver()], epochs=5, stop_at=cut_at, batches=2, store=disk)
    rates = rates_of_steps([ScheduledHyperParamSetter("lr", points, **options), ModelSaver()], epochs=5, batches=2, store=disk)
    assert rates[0] == value


def test_a_value_that_the_optimizer_does_not_store_is_restored(disk):
    points = [(1, 0.25), (3, 0.125)]

    def dropouts(epochs):
        thing, seen = SimpleNamespace(dropout=0.5), []
        with Loop([ScheduledHyperParamSetter(ObjAttrParam(thing, "dropout"), points), ModelSaver()], store=disk) as run:
            for _ in run.epochs(epochs):
                seen += [thing.dropout for _ in run.batches(range(1))]
        return seen

    assert dropouts(2) + dropouts(5) == [0.5, 0.25, 0.25, 0.125, 0.125]


def test_a_new_run_starts_from_scratch(rates_of_steps, disk, new_disk):
    setter = ScheduledHyperParamSetter("lr", [(0, 0.5), (1, 0.25)])
    for store in (disk, new_disk()):
        assert rates_of_steps([setter], epochs=2, store=store) == [0.5, 0.25]


# Events and errors


def test_linear_steps_record_an_event_once_per_epoch(rates_of_steps):
    class Events(Callback):
        def __init__(self):
            self.values = []

        def on_records(self, records):
            self.values += [record.values["setting"]["value"] for record in records if "setting" in record.values]

    events = Events()
    setter = ScheduledHyperParamSetter("lr", [(0, 1.0), (8, 0.0)], interp="linear", step_based=True)
    rates_of_steps([setter, events], epochs=2, batches=4)
    assert events.values == [0.875, 0.375]


def test_the_default_name_contains_the_setting():
    assert ScheduledHyperParamSetter("learning_rate", [(0, 1.0)]).name == "ScheduledHyperParamSetter(learning_rate)"
    assert ScheduledHyperParamSetter("lr", [(0, 1.0)], name="mine").name == "mine"


def test_invalid_schedules_and_unknown_settings_raise(rates_of_steps):
    with pytest.raises(BadSchedule, match="is empty"):
        ScheduledHyperParamSetter("lr", [])
    with pytest.raises(BadSchedule, match="interp must be"):
        ScheduledHyperParamSetter("lr", [(0, 1.0)], interp="cubic")
    with pytest.raises(UnknownSetting):
        rates_of_steps([ScheduledHyperParamSetter("dropout", [(0, 1.0)])], epochs=1, batches=2)


def test_a_schedule_applies_in_a_runner(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer, rates = torch.optim.SGD(model.parameters(), lr=1.0), Rates()
    setter = ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (2, 0.0)], interp="linear")
    data = (torch.randn(8, 2), torch.randn(8, 1))
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[setter, rates], monitors=[], extra_callbacks=[])
    runner.fit(data, epochs=3, batch_size=4)
    assert rates.seen == [0.5, 0.5, 0.25, 0.25, 0.0, 0.0]


# ValueSchedule


def walked(schedule, upto, start=0):
    """Return the values that are set, by the value of the clock."""
    found, done = {}, start - 1
    for now in range(start, upto + 1):
        value = schedule.due(done, now)
        done = now
        if value is not None:
            found[now] = value
    return found


def test_values_are_set_only_at_their_entries():
    assert walked(ValueSchedule([(3, 0.1), (0, 1.0), (6, 0.0)]), 8) == {0: 1.0, 3: 0.1, 6: 0.0}


def test_unsorted_entries_are_reported_in_one_line(caplog):
    ValueSchedule([(0, 1.0), (3, 0.1)])
    assert caplog.messages == []
    ScheduledHyperParamSetter("learning_rate", [(6, 0.01), (3, 0.1)])
    assert caplog.messages == ["The schedule's entries are not sorted; using [(3, 0.1), (6, 0.01)]"]


def test_nothing_is_set_before_the_first_entry():
    assert walked(ValueSchedule([(3, 0.1)]), 2) == {}


def test_linear_values_move_from_entry_to_entry():
    assert walked(ValueSchedule([(1, 1.0), (3, 0.5), (5, 1.5)], "linear"), 7) == {1: 1.0, 2: 0.75, 3: 0.5, 4: 1.0, 5: 1.5}


def test_a_jump_sets_the_last_value_that_was_skipped():
    assert ValueSchedule([(3, 0.1), (6, 0.2)]).due(2, 5) == 0.1
    assert ValueSchedule([(3, 0.1), (6, 0.2)]).due(2, 9) == 0.2
    assert ValueSchedule([(0, 0.0), (4, 4.0)], "linear").due(2, 9) == 4.0


def test_a_start_in_the_middle_sets_the_scheduled_value():
    assert ValueSchedule([(0, 1.0), (30, 0.0)]).due(-1, 40) == 0.0
    assert ValueSchedule([(0, 1.0), (4, 0.0)], "linear").due(-1, 1) == 0.75
    assert ValueSchedule([(2, 1.0)]).due(-1, 1) is None


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "is empty"),
        ([(1, 0.1), (1, 0.2)], "has two values at 1"),
        ([(-1, 0.1)], "is not a valid schedule entry"),
        ([(1.5, 0.1)], "is not a valid schedule entry"),
        ([(True, "a")], "is not a valid schedule entry"),
        ([(1, math.nan)], "is not a valid schedule entry"),
        ([(1, math.inf)], "is not a valid schedule entry"),
        ([(1, "0.1")], "is not a valid schedule entry"),
        ([(1, True)], "is not a valid schedule entry"),
        ([(1, 2, 3)], "is not a valid schedule entry"),
        ([5], "is not a valid schedule entry"),
    ],
)
def test_an_invalid_schedule_raises(points, says):
    with pytest.raises(BadSchedule, match=says):
        ValueSchedule(points)


def test_an_unknown_interpolation_raises():
    with pytest.raises(BadSchedule, match="interp must be None or 'linear', got 'cubic'"):
        ValueSchedule([(1, 0.1)], "cubic")


def test_numpy_integers_are_accepted():
    assert ValueSchedule([(numpy.int64(2), 0.1)]).due(0, 2) == 0.1


POINTS = st.dictionaries(st.integers(0, 40), st.floats(-10, 10), min_size=1, max_size=6)


@given(POINTS, st.sampled_from([None, "linear"]), st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_the_value_does_not_depend_on_when_the_schedule_is_asked(points, interp, stops):
    schedule = ValueSchedule(points.items(), interp)
    by_now = walked(schedule, 50)
    done, jumped = -1, None
    for now in sorted(stops):
        value = schedule.due(done, now)
        done = now
        jumped = jumped if value is None else value
        held = [by_now[at] for at in sorted(by_now) if at <= now][-1:]
        assert jumped == (held[0] if held else None)
