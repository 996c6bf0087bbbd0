from __future__ import annotations

import pytest

from hookpoint import (
    Callback,
    CallbackPipeline,
    EnableCallbackIf,
    Every,
    LambdaCallback,
    PeriodicCallback,
    PeriodicTrigger,
    callbacks,
    guarding,
)
from hookpoint.core.errors import BadSchedule, OutsideRun
from hookpoint.core.loop.loop import Loop


class Busy(Callback):
    """Record (point, iteration) of every call."""

    def __init__(self):
        self.seen = []

    def on_run_begin(self, run):
        self.seen.append(("run_begin", run.iteration))

    def on_iter_begin(self, run):
        self.seen.append(("iter_begin", run.iteration))

    def on_iter_end(self, run):
        self.seen.append(("iter_end", run.iteration))

    def on_epoch_end(self, run):
        self.seen.append(("epoch_end", run.iteration))

    def on_trigger(self, run):
        self.seen.append(("trigger", run.iteration))

    def on_run_end(self, run):
        self.seen.append(("run_end", run.iteration))

    def at(self, point):
        return [iteration for name, iteration in self.seen if name == point]


def two_epochs_of_three(callback):
    with Loop([callback]) as run:
        for _ in run.epochs(2):
            for _ in run.batches("abc"):
                pass


@pytest.mark.parametrize(
    ("options", "triggered"),
    [
        ({"every_k_steps": 2}, [2, 4, 6]),
        ({"every_k_epochs": 2}, [6]),
        ({"every_k_steps": 4, "every_k_epochs": 1}, [3, 4, 6]),
        ({"every_k_steps": 3, "before_train": True}, [0, 3, 6]),
        ({"before_train": True}, [0]),
    ],
)
def test_periodic_trigger_schedules_only_on_trigger(options, triggered):
    busy = Busy()
    two_epochs_of_three(PeriodicTrigger(busy, **options))
    assert busy.at("trigger") == triggered
    assert busy.at("iter_end") == [1, 2, 3, 4, 5, 6]
    assert busy.at("epoch_end") == [3, 6]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda busy: PeriodicTrigger(busy.when(Every(steps=1)), every_k_steps=4),
        lambda busy: PeriodicTrigger(PeriodicTrigger(busy, every_k_steps=1), every_k_steps=4),
        lambda busy: PeriodicTrigger(EnableCallbackIf(busy.when(Every(steps=1)), lambda run: True), every_k_steps=4),
        lambda busy: CallbackPipeline([PeriodicTrigger(busy, every_k_steps=4)]).when(Every(steps=1)),
    ],
    ids=["its own", "nested", "around another wrapper", "in a pipeline"],
)
def test_the_outermost_periodic_trigger_sets_the_schedule(wrap):
    busy = Busy()
    two_epochs_of_three(wrap(busy))
    assert busy.at("trigger") == [4]


def test_a_periodic_trigger_replaces_the_period_of_an_included_callback():
    calls = []
    reads = callbacks.ProcessTensors({"step": lambda run: run.step}, calls.append)
    two_epochs_of_three(PeriodicTrigger(reads, every_k_epochs=1))
    assert calls == [3, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PeriodicTrigger(Busy()),
            "PeriodicTrigger: no period given.\n  give      every_k_steps, every_k_epochs or before_train",
        ),
        (lambda: PeriodicCallback(Busy()), "PeriodicCallback: no period given.\n  give      every_k_steps or every_k_epochs"),
        (
            lambda: PeriodicTrigger(Busy(), every_k_steps=0),
            "Every(steps=0): steps must be an integer >= 1, got 0.",
        ),
        (
            lambda: PeriodicCallback(Busy(), every_k_epochs=-1),
            "Every(epochs=-1): epochs must be an integer >= 1, got -1.",
        ),
    ],
)
def test_a_missing_or_invalid_period_raises(make, message):
    with pytest.raises(BadSchedule) as caught:
        make()
    assert str(caught.value) == message


def test_periodic_callback_sees_whole_iterations_every_k_steps():
    busy = Busy()
    two_epochs_of_three(PeriodicCallback(busy, every_k_steps=2))
    assert busy.at("iter_begin") == [1, 3, 5]
    assert busy.at("iter_end") == [2, 4, 6]
    assert busy.at("epoch_end") == [6]


def test_periodic_callback_sees_whole_epochs_every_k_epochs():
    busy = Busy()
    two_epochs_of_three(PeriodicCallback(busy, every_k_epochs=2))
    assert busy.at("iter_end") == [4, 5, 6]
    assert busy.at("epoch_end") == busy.at("trigger") == [6]


def test_periodic_callback_with_both_periods_runs_in_either():
    busy = Busy()
    two_epochs_of_three(PeriodicCallback(busy, every_k_steps=2, every_k_epochs=2))
    assert busy.at("iter_end") == [2, 4, 5, 6]


def test_a_callback_is_enabled_while_its_predicate_holds():
    busy = Busy()
    two_epochs_of_three(EnableCallbackIf(busy, lambda run: run.epoch_num == 2))
    assert busy.at("iter_end") == [4, 5, 6]
    assert busy.at("trigger") == [6]


@pytest.mark.parametrize("wrap", [lambda one: EnableCallbackIf(one, lambda run: False), lambda one: PeriodicCallback(one, 99)])
def test_the_begin_and_end_of_the_run_are_always_called(wrap):
    busy = Busy()
    two_epochs_of_three(wrap(busy))
    assert busy.seen == [("run_begin", 0), ("run_end", 6)]


def test_a_tick_is_lost_while_the_callback_is_disabled():
    busy = Busy()
    two_epochs_of_three(EnableCallbackIf(busy.when(Every(steps=2)), lambda run: run.step != 4))
    assert busy.at("trigger") == [2, 6]


def test_nested_wrappers_must_all_allow_a_call():
    busy = Busy()
    two_epochs_of_three(EnableCallbackIf(PeriodicCallback(busy, every_k_steps=2), lambda run: run.epoch == 1))
    assert busy.at("iter_end") == [2]


class Own(Callback):
    def __init__(self):
        self.calls = 0

    def on_weigh(self):
        self.calls += 1


def test_a_disabled_callback_does_not_get_custom_points():
    own = Own()
    with Loop([EnableCallbackIf(own, lambda run: run.step == 1)]) as run:
        for _ in run.batches("ab"):
            run.fire("on_weigh")
    assert own.calls == 1


def test_a_predicate_outside_a_run_raises():
    wrapped = EnableCallbackIf(LambdaCallback(on_weigh_begin=lambda: None), lambda run: True)
    block = guarding("on_weigh", wrapped)
    with pytest.raises(OutsideRun, match=r"LambdaCallback\.on_weigh_begin has a schedule, which needs the clocks of a run"):
        block.__enter__()


# Monitors


class Epochs(Callback):
    """A monitor that records the epochs whose loss it receives."""

    def __init__(self):
        self.epochs = []

    def on_records(self, records):
        self.epochs += [record.epoch for record in records if "loss" in record.values]


def log_epochs(*monitors):
    with Loop(monitors) as run:
        for _ in run.epochs(5):
            run.log(loss=1.0)


def test_a_predicate_applies_to_the_records_of_a_monitor():
    late, always = Epochs(), Epochs()
    log_epochs(EnableCallbackIf(late, lambda run: run.epoch > 3), always)
    assert (late.epochs, always.epochs) == ([4, 5], [1, 2, 3, 4, 5])


def test_a_period_applies_to_the_records_of_a_monitor():
    second = Epochs()
    log_epochs(PeriodicCallback(second, every_k_epochs=2))
    assert second.epochs == [2, 4]
