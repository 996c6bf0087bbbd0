"""Readers with a step schedule see what the current pass logs: the mean since their last call."""

from __future__ import annotations

import copy
import random
import threading

import pytest
import torch

from hookpoint import Every, PeriodicTrigger, on
from hookpoint.callbacks import (
    EarlyStopping,
    MaxSaver,
    MinSaver,
    ModelCheckpoint,
    ModelSaver,
    ReduceLROnPlateau,
    StatMonitorParamSetter,
    StopAtThreshold,
    TopKSaver,
)
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.core.checkpoint.store import Checkpoint, Kept, Saved
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment


class Device:
    """A value on a device: reading it as a float waits."""

    is_cpu = False

    def __init__(self, value, waits=None):
        self.value, self.waits = value, waits

    def detach(self):
        return self

    def __float__(self):
        if self.waits is not None:
            self.waits.append(threading.current_thread() is threading.main_thread())
        return float(self.value)


class Watches(MetricWatcher):
    """Record the step at which each value is seen."""

    def __init__(self, monitor="reward", **options):
        super().__init__(monitor, **options)
        self.seen = []

    def take(self, run, moment, value):
        self.seen.append((run.step, value))

    def state_dict(self):
        return {**super().state_dict(), "seen by now": list(self.seen)}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.seen = [tuple(one) for one in state["seen by now"]]


class Memory:
    """A store that outlives its runs; `kept` has the checkpoints left for each tag."""

    def __init__(self):
        self.kept, self.newest = {}, None

    def open(self, resume, identity):
        return None if self.newest is None else Checkpoint("newest", copy.deepcopy(self.newest))

    def write(self, state, *, step, elapsed, request):
        self.newest = copy.deepcopy(state)
        for tag, keep in request.tags.items():
            self.kept[tag] = [*self.kept.get(tag, ()), Kept(f"step-{step}", step, elapsed, Moment.of(state["clocks"]))]
            self.kept[tag] = self.kept[tag] if keep is None else list(keep(self.kept[tag]))
        return Saved("newest", step, list(request.tags))

    def check(self, state): ...

    def collect(self, *, wait=False):
        return []

    def close(self): ...


def steps(watches, values, *, log_every=50, batches=None, **given):
    """Log one value per step, in one pass; return what was seen at which step. A value of None is not logged."""
    with Loop([watches], log_every=log_every, **given) as run:
        for value, _ in zip(values, run.batches(batches or range(len(values))), strict=True):
            if value is not None:
                run.log(reward=value)
    return watches.seen


# Numbers on the host


def test_a_reader_sees_a_number_in_the_iteration_that_logs_it():
    assert steps(Watches().when(Every(steps=1)), [1.0, 2.0, 4.0]) == [(1, 1.0), (2, 2.0), (3, 4.0)]


@pytest.mark.parametrize(
    "number", [int, float, torch.tensor, lambda value: torch.tensor([value]), lambda value: torch.tensor(value).numpy()]
)
def test_every_kind_of_host_number_is_seen_at_once(number):
    assert steps(Watches().when(Every(steps=1)), [number(1.0), number(3.0)]) == [(1, 1.0), (2, 3.0)]


def test_a_reader_sees_the_mean_since_its_last_call():
    assert steps(Watches().when(Every(steps=2)), [1.0, 2.0, 4.0, 8.0, 16.0]) == [(2, 1.5), (4, 6.0)]


def test_the_mean_is_weighted_by_samples():
    values, batches = [1.0, 4.0], [["a"], ["a", "b"]]
    assert steps(Watches().when(Every(steps=2)), values, batches=batches) == [(2, 3.0)]


def test_a_reader_does_not_act_without_a_new_value():
    assert steps(Watches().when(Every(steps=1)), [1.0, None, None, 3.0]) == [(1, 1.0), (4, 3.0)]


def test_each_reader_has_its_own_window():
    often, rarely, by_epoch = (
        Watches(name="often").when(Every(steps=1)),
        Watches(name="rarely").when(Every(steps=3)),
        Watches(name="by epoch"),
    )
    with Loop([often, rarely, by_epoch]) as run:
        for _ in run.epochs(1):
            for value in run.batches([1.0, 2.0, 6.0, 7.0]):
                run.log(reward=value)
    assert often.seen == [(1, 1.0), (2, 2.0), (3, 6.0), (4, 7.0)]
    assert rarely.seen == [(3, 3.0)]
    assert by_epoch.seen == [(4, 4.0)]


def test_a_window_spans_passes_and_ignores_their_means():
    watches = Watches().when(Every(steps=3))
    with Loop([watches]) as run:
        for _ in run.epochs(3):
            for value in run.batches([1.0, 3.0]):
                run.log(reward=value)
    assert watches.seen == [(3, 5 / 3), (6, 7 / 3)]


def test_a_schedule_of_steps_and_epochs_sees_the_rest_at_the_end_of_the_epoch():
    watches = Watches().when(Every(steps=2) | Every(epochs=1))
    with Loop([watches]) as run:
        for _ in run.epochs(1):
            for value in run.batches([1.0, 3.0, 9.0]):
                run.log(reward=value)
    assert watches.seen == [(2, 2.0), (3, 9.0)]


@pytest.mark.parametrize("clock", [{"iterations": 2}, {"samples": 2}])
def test_schedules_by_iterations_and_samples_have_windows(clock):
    assert steps(Watches().when(Every(**clock)), [1.0, 3.0, 5.0, 7.0]) == [(2, 2.0), (4, 6.0)]


def test_the_schedule_of_a_wrapper_applies():
    watches = Watches()
    with Loop([PeriodicTrigger(watches, every_k_steps=2)]) as run:
        for value in run.batches([1.0, 3.0]):
            run.log(reward=value)
    assert watches.seen == [(2, 2.0)]


def test_a_value_logged_at_on_iter_end_is_seen_in_that_iteration():
    @on("on_iter_end")
    def score(run):
        run.log(reward=float(run.step))

    watches = Watches().when(Every(steps=1))
    with Loop([score, watches]) as run:
        for _ in run.batches(range(3)):
            pass
    assert watches.seen == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_validation_results_within_a_pass_are_seen_at_once():
    watches = Watches("val_reward").when(Every(steps=1))
    with Loop([watches], log_every=2) as run:
        for _ in run.batches(range(4)):
            if run.step % 2:
                for value in run.batches([1.0, 3.0], mode="val"):
                    run.log(reward=Device(value + run.step))
    assert watches.seen == [(2, 3.0), (4, 5.0)]


def test_values_of_a_side_pass_are_not_seen():
    watches = Watches().when(Every(steps=1))
    with Loop([watches], model=torch.nn.Linear(1, 1)) as run:
        for _ in run.batches(range(2)):
            run.evaluate([1.0], forward=lambda run: run.put_scalar("reward", 5.0))
        run.metrics.show("reward", 0.0, 1)
    assert watches.seen == []


def test_a_second_run_starts_with_an_empty_window():
    watches = Watches().when(Every(steps=2))
    assert steps(watches, [1.0]) == []
    assert steps(watches, [3.0, 5.0]) == [(2, 4.0)]


# Device tensors


@pytest.mark.parametrize("every", [1, 2])
def test_device_tensors_are_seen_one_log_step_late(every):
    seen = steps(Watches().when(Every(steps=every)), [Device(float(step)) for step in range(1, 10)], log_every=2)
    assert seen == [(4, 1.5), (6, 3.5), (8, 5.5)]


def test_a_reader_between_log_steps_sees_only_visible_device_tensors():
    values = [Device(float(step)) for step in range(1, 13)]
    assert steps(Watches().when(Every(steps=5)), values, log_every=2) == [(5, 1.5), (10, (3 + 4 + 5 + 6 + 7 + 8) / 6)]


def test_a_device_tensor_is_read_on_the_training_thread_only_after_its_log_step():
    waits, read_at = [], []

    class Reads(Watches):
        def take(self, run, moment, value):
            read_at.append((run.step, len(waits)))

    steps(Reads().when(Every(steps=1)), [Device(1.0, waits) for _ in range(6)], log_every=2)
    assert read_at == [(4, 2), (6, 4)]


def test_a_reader_that_is_never_due_does_not_keep_all_tensors():
    waits, waits_before_the_end = [], []
    with Loop([Watches().when(Every(steps=1000))], log_every=1) as run:
        for _ in run.batches(range(40)):
            waits_before_the_end[:] = waits
            run.log(reward=Device(1.0, waits))
    assert sum(waits_before_the_end) == 32


def test_the_rest_of_a_pass_is_visible_at_its_end():
    watches = Watches().when(Every(steps=4) | Every(epochs=1))
    with Loop([watches], log_every=2) as run:
        for _ in run.epochs(2):
            for value in run.batches([1.0, 2.0, 3.0, 4.0, 5.0]):
                run.log(reward=Device(value))
    assert watches.seen == [(4, 1.5), (5, 4.0), (8, 1.0), (10, 3.5)]


def test_without_log_steps_device_tensors_are_visible_when_the_pass_ends():
    watches = Watches().when(Every(steps=1))
    with Loop([watches], log_every=0) as run:
        for _ in run.epochs(2):
            for value in run.batches([1.0, 3.0]):
                run.log(reward=Device(value))
    assert watches.seen == [(3, 2.0)]


def test_numbers_are_seen_at_once_and_device_tensors_of_the_same_name_late():
    values = [1.0, Device(10.0), Device(20.0), 4.0]
    assert steps(Watches().when(Every(steps=1)), values, log_every=2) == [(1, 1.0), (4, 7.0)]


# Callbacks that read


def in_one_pass(callback, values, **given):
    with Loop([callback], log_every=2, **given) as run:
        for value in run.batches(values):
            run.log(reward=value)
    return run


def test_stop_at_threshold_stops_within_a_pass():
    run = in_one_pass(StopAtThreshold("reward", 60, mode="max").when(Every(steps=1)), range(0, 200, 10))
    assert run.step == 7


def test_early_stopping_counts_windows():
    run = in_one_pass(EarlyStopping("reward", patience=2, mode="max").when(Every(steps=2)), [1, 1, 2, 2, 2, 2, 1, 1, 5, 5])
    assert run.step == 8


@pytest.mark.parametrize(
    "callback",
    [
        lambda: ReduceLROnPlateau("reward", factor=0.5, patience=2, mode="max"),
        lambda: StatMonitorParamSetter("learning_rate", "reward", lambda rate: rate / 2, 0.0, 3, reverse=True),
    ],
)
def test_learning_rate_callbacks_act_within_a_pass(callback):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, rates = torch.optim.SGD([weight], lr=1.0), []
    with Loop([callback().when(Every(steps=1))], optimizer=optimizer) as run:
        for _ in run.batches(range(4)):
            run.log(reward=1.0)
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("saver", "tag", "kept"),
    [
        (lambda: MaxSaver("reward").when(Every(steps=1)), "best-reward", [3]),
        (lambda: MinSaver("reward").when(Every(steps=1)), "best-reward", [2]),
        (lambda: TopKSaver("reward", k=2, mode="max").when(Every(steps=1)), "top-reward", [1, 3]),
        (lambda: ModelCheckpoint(monitor="reward", mode="max", save_freq=1, save_best_only=True), "best-reward", [3]),
    ],
)
def test_savers_keep_the_best_steps_of_a_pass(saver, tag, kept):
    store = Memory()
    in_one_pass(saver(), [5.0, 1.0, 9.0, 2.0], store=store)
    assert [one.step for one in store.kept[tag]] == kept


def test_a_saver_saves_a_late_value_at_the_step_at_which_it_is_seen(caplog):
    saver = MaxSaver("reward").when(Every(steps=1))
    in_one_pass(saver, [Device(value) for value in (1.0, 3.0, 9.0, 9.0, 2.0, 2.0)], store=Memory())
    assert (saver.best.value, saver.best.step) == (9.0, 6)
    assert "are gone" not in caplog.text


@pytest.mark.parametrize(
    "saver",
    [
        lambda: MaxSaver("reward").when(Every(steps=2)),
        lambda: TopKSaver("reward", k=1, mode="max").when(Every(steps=2)),
        lambda: ModelCheckpoint(monitor="reward", mode="max", save_freq=2, save_best_only=True),
    ],
)
def test_validations_and_epoch_ends_do_not_close_the_window_of_a_saver(saver):
    saver = saver()
    with Loop([saver], store=Memory()) as run:
        for _ in run.epochs(2):
            for value in run.batches([1.0, 3.0, 9.0]):
                run.log(reward=value)
                for _ in run.batches([0], mode="val"):
                    run.log(reward=value)
    assert (saver.best.value, saver.best.moment.step) == (6.0, 6)


# Resuming


class Killed(Exception): ...


def trained(store, kinds, *, every, log_every, kill_at=None, saves=3, epochs=2):
    """Train 2 epochs of 11 steps with values that differ; return what was seen. A killed run resumes."""
    watches = [Watches(name="one").when(Every(steps=every)), Watches(name="other").when(Every(steps=2 * every + 1))]
    numbers = [random.Random(step).gauss(0.0, 1.0) for step in range(11 * epochs)]
    with Loop([*watches, ModelSaver().when(Every(steps=saves))], store=store, log_every=log_every) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches([["x"] * (1 + index % 3) for index in range(11)]):
                number = numbers[(epoch - 1) * 11 + run.batch_idx] * len(batch)
                run.log(reward=Device(number) if kinds[run.batch_idx % len(kinds)] else number)
                if kill_at is not None and run.step == kill_at:
                    raise Killed
    return [one.seen for one in watches]


@pytest.mark.thin(7)
@pytest.mark.parametrize("kinds", [(False,), (True,), (True, False, False)])
@pytest.mark.parametrize(("every", "log_every"), [(1, 4), (3, 2), (2, 1), (5, 0)])
def test_a_resumed_run_sees_the_same_values_at_the_same_steps(kinds, every, log_every):
    whole = trained(Memory(), kinds, every=every, log_every=log_every)
    assert all(whole)
    for kill_at in (4, 8, 10, 16):
        store = Memory()
        with pytest.raises(Killed):
            trained(store, kinds, every=every, log_every=log_every, kill_at=kill_at)
        assert trained(store, kinds, every=every, log_every=log_every) == whole


def test_saves_do_not_change_what_readers_see():
    often, rarely = (trained(Memory(), (True, False), every=2, log_every=3, saves=saves) for saves in (1, 100))
    assert often == rarely


def test_an_older_checkpoint_without_windows_can_be_resumed():
    store = Memory()
    with pytest.raises(Killed):
        trained(store, (True, False), every=1, log_every=2, kill_at=5)
    for name in ("late", "in_flight", "put"):
        del store.newest["logbook"][name]
    for name in ("one", "other"):
        for key in ("unread", "ignored"):
            del store.newest["callbacks"][name]["state"][key]
    one, _ = trained(store, (True, False), every=1, log_every=2)
    assert [step for step, _ in one][:5] == [2, 4, 6, 8, 10]


# Without readers


def test_without_readers_by_steps_no_windows_are_kept():
    with Loop([Watches(), StopAtThreshold("reward", 60, mode="max")]) as run:
        assert run.hooks.read_by_steps == frozenset()
        for value in run.batches([1.0]):
            run.log(reward=value)
            assert type(run._logbook._pages[0].window["reward"]).__name__ == "Mean"


# put_scalar


@pytest.mark.parametrize(("value", "seen"), [(float, [(2, 1.5), (4, 3.5), (6, 1.5)]), (Device, [(4, 1.5), (6, 3.5)])])
def test_values_put_with_put_scalar_are_seen_once(value, seen):
    watches = Watches().when(Every(steps=2))
    with Loop([watches], log_every=2) as run:
        for _ in run.epochs(2):
            for number in run.batches([1.0, 2.0, 3.0, 4.0][: 4 // run.epoch]):
                run.put_scalar("reward", value(number))
    assert watches.seen == seen


# On a GPU


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_readers_of_gpu_losses_do_not_synchronize_between_log_steps():
    from hookpoint import Runner

    torch.manual_seed(0)
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(12)]
    losses, watches, puts = [], Watches("loss").when(Every(steps=1)), Watches("put").when(Every(steps=1))

    @on("on_train_iter_end")
    def look(run):
        losses.append(run.loss.detach().clone())
        run.put_scalar("put", run.loss)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = Runner(
        model, optimizer, torch.nn.MSELoss(), callbacks=[look, watches, puts], device="cuda", strict_sync=True, log_every=4
    )
    runner.fit(data, epochs=1)
    means = [sum(float(one) for one in losses[at : at + 4]) / 4 for at in (0, 4)]
    assert [step for step, _ in watches.seen] == [8, 12]
    assert [value for _, value in watches.seen] == pytest.approx(means)
    assert puts.seen == watches.seen
