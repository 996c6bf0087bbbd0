"""The cost of callbacks is sampled, and an expensive callback is reported once."""

from __future__ import annotations

import json

import pytest
import torch

from hookpoint import Callback, Every, Hooks, LambdaCallback, Runner, callbacks
from hookpoint.core.hooks.costs import FIRST_SAMPLE, STEP_POINTS, Cost, StepShare
from hookpoint.core.loop.loop import Loop


class Watch(Callback):
    def on_run_begin(self): ...
    def on_iter_begin(self): ...
    def on_train_iter_end(self): ...
    def on_epoch_end(self): ...
    def on_run_end(self): ...


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


class Takes(Callback):
    """Takes `seconds` of each step."""

    def __init__(self, clock, seconds, **options):
        super().__init__(**options)
        self.clock, self.seconds = clock, seconds

    def on_train_iter_end(self):
        self.clock.wait(self.seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("hookpoint.core.hooks.dispatch.perf_counter", clock)
    monkeypatch.setattr("hookpoint.core.loop.machine.perf_counter", clock)
    return clock


def cost(callback, point, seconds):
    return Cost(callback, point, calls=1, seconds=seconds)


def share(*costs, step_seconds=1.0):
    return after_steps(step_seconds / 2, step_seconds / 2).heavy(list(costs))


def after_steps(*seconds):
    """Return the share after a cold first step and steps that took these seconds."""
    step = StepShare()
    for one in (1000.0, *seconds):
        step.add_step(one)
    return step


@pytest.mark.parametrize(("iterations", "sampled"), [(4, 0), (64, 1), (6400, 100)])
def test_one_iteration_in_64_is_sampled_but_none_of_the_first_four(train, iterations, sampled):
    costs = train([LambdaCallback(on_train_iter_end=lambda: None)], batches=range(iterations)).hooks.costs()
    assert sum(one.calls for one in costs) == sampled


def test_iterations_are_sampled_and_rarer_points_are_always_measured(train):
    run = train([Watch()], epochs=2, batches=range(128))
    calls = {one.point: one.calls for one in run.hooks.costs()}
    assert calls == {"on_run_begin": 1, "on_iter_begin": 4, "on_train_iter_end": 4, "on_epoch_end": 2, "on_run_end": 1}


def test_validation_is_not_sampled_with_the_training_step(train):
    run = train([Watch()], batches=range(2), val=range(80))
    assert {one.point for one in run.hooks.costs()} == {"on_run_begin", "on_epoch_end", "on_run_end"}


def test_validation_points_are_sampled_even_in_a_short_pass(train):
    run = train([LambdaCallback(on_val_iter_end=lambda: None)], batches=range(2), val=range(3), epochs=2)
    assert [(one.point, one.calls) for one in run.hooks.costs()] == [("on_val_iter_end", 2)]


def test_the_points_of_the_optimizer_step_are_sampled_with_the_iteration():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Loop([LambdaCallback(on_step_begin=lambda: None, on_step_end=lambda: None)], optimizer=optimizer) as run:
        for _ in run.epochs(1):
            for _ in run.batches(range(128)):
                optimizer.step()
        optimizer.step()  # outside an iteration
    assert {one.point: one.calls for one in run.hooks.costs()} == {"on_step_begin": 2, "on_step_end": 2}


def test_all_points_of_a_training_step_are_sampled(tmp_path):
    points = ["on_iter_begin", "on_train_iter_begin", *STEP_POINTS, "on_train_iter_end", "on_iter_end"]
    model = torch.nn.Linear(1, 1)
    data = [(torch.ones(1, 1), torch.ones(1, 1))] * 80
    watch = LambdaCallback(**dict.fromkeys(points, lambda: None), name="watch")
    loss, optimizer = torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1)
    runner = Runner(model, optimizer, loss, callbacks=[watch], workdir=tmp_path)
    runner.fit(data, epochs=1)
    rows = [row for row in json.loads((tmp_path / "run.json").read_text())["costs"] if row["callback"] == "watch"]
    assert {row["point"]: row["calls"] for row in rows} == dict.fromkeys(points, 2)
    assert all(row["estimated_seconds"] == pytest.approx(row["seconds"] * 40) for row in rows)


def test_an_error_in_a_sampled_step_names_the_callback():
    def fail(run):
        if run.iteration == FIRST_SAMPLE - 1:
            raise ZeroDivisionError

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    with (
        pytest.raises(ZeroDivisionError) as raised,
        Loop([LambdaCallback(on_step_begin=fail, name="fails")], optimizer=optimizer) as run,
    ):
        for _ in run.epochs(1):
            for _ in run.batches(range(10)):
                optimizer.step()
    assert raised.value.__notes__ == ["in callback fails at on_step_begin (step 7, rank 0)"]


@pytest.mark.parametrize(
    ("point", "calls"), [("on_iter_end", 50.0), ("on_step_end", 50.0), ("on_val_iter_end", 10.0), ("on_epoch_end", 1.0)]
)
def test_a_sample_stands_for_all_calls_of_its_mode(point, calls):
    share = StepShare()
    for mode in ("train", "train", "val"):
        share.add(mode, 1.0)
    share.add_pass("val", 10)
    assert share.calls_per_sample(point, iterations=100) == calls


def test_a_handler_that_was_never_called_has_no_cost(train):
    run = train([LambdaCallback(on_trigger=lambda: None).when(Every(steps=1000))], batches=range(20))
    assert run.hooks.costs() == []


def test_costs_are_sorted_from_the_most_expensive():
    hooks = Hooks([Watch(name="a"), Watch(name="b")])
    for position, seconds in enumerate([1.0, 3.0, 2.0]):
        calls = (*hooks.calls("on_epoch_end"), *hooks.calls("on_run_end"))
        calls[position].cost.add(seconds)
    assert [(one.callback, one.point, one.seconds) for one in hooks.costs()] == [
        ("b", "on_epoch_end", 3.0),
        ("a", "on_run_end", 2.0),
        ("a", "on_epoch_end", 1.0),
    ]


def test_time_is_counted_per_call():
    one = Cost("a", "on_epoch_end")
    assert one.microseconds_per_call == 0.0
    one.add(0.001)
    one.add(0.003)
    assert (one.calls, one.seconds) == (2, 0.004)
    assert one.microseconds_per_call == pytest.approx(2000)


def test_the_cost_of_a_call_is_the_time_of_its_handler_alone(train, clock):
    run = train([Takes(clock, 0.5, name="a"), Takes(clock, 0.25, name="b")], batches=range(10), body=lambda run: clock.wait(1))
    assert [(one.callback, one.point, one.seconds) for one in run.hooks.costs()] == [
        ("a", "on_train_iter_end", 0.5),
        ("b", "on_train_iter_end", 0.25),
    ]


# Callbacks that take too much of the step


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [(0.1, []), (0.25, ['a takes 25% of the step time; to call it less often, use @on("on_iter_end", when=Every(steps=50))'])],
)
def test_a_callback_that_takes_over_a_tenth_of_the_step_is_reported(seconds, lines):
    assert share(cost("a", "on_iter_end", seconds)) == lines


class Triggered(Takes):
    on_train_iter_end = Callback.on_train_iter_end

    def on_trigger(self):
        self.clock.wait(self.seconds)


class Tensorpack(Takes):
    on_train_iter_end = Callback.on_train_iter_end

    def _trigger(self):
        self.clock.wait(self.seconds)


class OverridesRun(Takes):
    def run(self, hookpoint=None, logs=None):
        Callback.run(self, hookpoint, logs)


class OverridesTriggered(Triggered):
    run = OverridesRun.run


@pytest.mark.parametrize(
    ("kind", "schedule", "less"),
    [
        (Triggered, Every(steps=1), ".when(Every(steps=50))"),
        (Tensorpack, Every(steps=1), ".when(Every(steps=50))"),
        (OverridesTriggered, Every(steps=1), ".when(Every(steps=50))"),
        (OverridesRun, None, "on_trigger and .when(Every(steps=50)) instead of run"),
    ],
)
def test_the_report_suggests_a_schedule_that_the_callback_can_use(kind, schedule, less, caplog, clock):
    heavy = kind(clock, 0.25, name="heavy")
    with Loop([heavy if schedule is None else heavy.when(schedule)]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(range(64)):
                clock.wait(0.9375)
    [message] = caplog.messages
    assert message.endswith(f"of the step time; to call it less often, use {less}")


def test_the_points_of_a_step_are_added_up():
    points = ["on_iter_begin", "on_train_iter_begin", "on_train_iter_end", "on_iter_end"]
    assert share(*(cost("a", point, 0.03) for point in points)) == [
        'a takes 12% of the step time; to call it less often, use @on("on_iter_begin", when=Every(steps=50))'
    ]


def test_time_between_steps_is_not_counted():
    rare = [cost("a", point, 100.0) for point in ("on_setup", "on_run_begin", "on_epoch_end", "on_val_epoch_end")]
    assert share(*rare, cost("a", "on_iter_end", 0.01)) == []


def test_no_callback_is_reported_before_a_step_is_measured():
    assert StepShare().heavy([cost("a", "on_iter_end", 5.0)]) == []


def test_a_callback_is_reported_once():
    step = after_steps(0.5, 0.5)
    assert len(step.heavy([cost("a", "on_iter_end", 0.5)])) == 1
    assert step.heavy([cost("a", "on_iter_end", 0.9)]) == []
    assert len(step.heavy([cost("a", "on_iter_end", 0.9), cost("b", "on_iter_end", 0.9)])) == 1


def test_an_expensive_callback_is_reported_once_at_the_end_of_an_epoch(caplog, clock):
    said = []
    with Loop([Takes(clock, 0.25, name="heavy"), Takes(clock, 0.0625, name="light")]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(range(10)):
                clock.wait(0.9375)
            said.append(len(caplog.messages))
    assert said == [0, 0, 0], "the first sample is cold, and one more is too few"
    assert caplog.messages == [
        'heavy takes 20% of the step time; to call it less often, use @on("on_train_iter_end", when=Every(steps=50))'
    ]


def test_a_short_epoch_is_not_measured(caplog, train, clock):
    train([Takes(clock, 5.0)], batches=range(4))
    assert caplog.messages == []


def test_the_first_step_and_the_first_call_are_not_counted(caplog, clock):
    class Warms(Takes):
        def on_train_iter_end(self):
            self.clock.wait(100.0 if self.count == FIRST_SAMPLE else self.seconds)
            self.count += 1

        count = 0

    with Loop([Warms(clock, 0.01)]) as run:
        for _ in run.epochs(4):
            for _ in run.batches(range(10)):
                clock.wait(1.0)
    assert caplog.messages == []


@pytest.mark.parametrize(("seconds", "is_named"), [(49e-6, False), (51e-6, True)])
def test_a_negligible_cost_is_not_reported(seconds, is_named):
    assert bool(after_steps(1e-4, 1e-4).heavy([cost("a", "on_iter_end", 2 * seconds)])) is is_named


def test_only_callbacks_of_users_are_reported(caplog, clock):
    ours = callbacks.RunOp(lambda: clock.wait(1.0), run_step=True)
    theirs = LambdaCallback(on_train_iter_end=lambda: clock.wait(1.0))
    with Loop([ours, theirs]) as run:
        for _ in run.epochs(3):
            for _ in run.batches(range(10)):
                clock.wait(1.0)
    assert [message.partition(" ")[0] for message in caplog.messages] == ["LambdaCallback"]
