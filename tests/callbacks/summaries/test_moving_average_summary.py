from __future__ import annotations

import math
import pickle
import threading

import pytest
import torch

from hookpoint.callbacks import MovingAverageSummary
from hookpoint.callbacks.summaries.moving_average_summary import Average
from hookpoint.core.loop.loop import Loop


class Slow:
    """A value on a device that records which threads waited for it."""

    def __init__(self, value):
        self.value = value
        self.readers = []

    def __float__(self):
        self.readers.append(threading.get_ident())
        return self.value


@pytest.fixture
def train_on_values(train):
    """Log these values as `loss`, and a constant as `other`."""

    def go(callbacks, values, *, log_every=1):
        return train(callbacks, batches=values, step=lambda run, value: run.log(loss=value, other=1.0), log_every=log_every)

    return go


def expected(values, decay):
    total = weight = 0.0
    for value in values:
        total, weight = decay * total + (1 - decay) * value, decay * weight + (1 - decay)
    return total / weight


def test_each_log_step_contains_the_average_of_each_scalar(train_on_values, recorder):
    monitor = recorder()
    train_on_values([MovingAverageSummary(decay=0.5), monitor], [4.0, 2.0, 8.0])
    assert monitor.steps == [
        (1, {"loss": 4.0, "other": 1.0, "loss/ema": 4.0, "other/ema": 1.0}),
        (2, {"loss": 2.0, "other": 1.0, "loss/ema": pytest.approx(expected([4, 2], 0.5)), "other/ema": 1.0}),
        (3, {"loss": 8.0, "other": 1.0, "loss/ema": pytest.approx(expected([4, 2, 8], 0.5)), "other/ema": 1.0}),
    ]


def test_the_means_of_log_steps_are_averaged(train_on_values, recorder):
    monitor = recorder()
    train_on_values([MovingAverageSummary(decay=0.75), monitor], [1.0, 3.0, 6.0, 8.0, 100.0], log_every=2)
    assert [row["loss/ema"] for _, row in monitor.steps] == [2.0, pytest.approx(expected([2, 7], 0.75))]


def test_names_limit_what_is_averaged(train_on_values, recorder):
    monitor = recorder()
    train_on_values([MovingAverageSummary(["loss", "absent"]), monitor], [1.0])
    assert set(monitor.steps[0][1]) == {"loss", "other", "loss/ema"}


def test_names_can_be_a_single_string():
    assert MovingAverageSummary("loss").names == {"loss"}


def test_validation_is_not_averaged(recorder):
    monitor = recorder()
    with Loop([MovingAverageSummary(), monitor], log_every=1) as run:
        for _ in run.batches([1, 2], mode="val"):
            run.log(loss=1.0)
    assert monitor.steps == []


def test_nonfinite_means_are_left_out(train_on_values, recorder):
    monitor = recorder()
    train_on_values([MovingAverageSummary(decay=0.5), monitor], [math.nan, 4.0, math.inf, 2.0])
    averages = [row["loss/ema"] for _, row in monitor.steps]
    assert math.isnan(averages[0])
    assert averages[1:] == [4.0, 4.0, pytest.approx(expected([4, 2], 0.5))]


def test_the_training_thread_waits_for_no_value(train_on_values, recorder):
    class Watch(recorder):
        def on_records(self, records):
            threads.add(threading.get_ident())
            super().on_records(records)

    threads, monitor, values = set(), Watch(), [Slow(float(number)) for number in range(6)]
    train_on_values([MovingAverageSummary(), monitor], values, log_every=2)
    assert threads == {reader for value in values for reader in value.readers}
    assert threading.get_ident() not in threads


def test_tensors_and_floats_give_the_same_averages(train_on_values, recorder):
    numbers = torch.rand(50, dtype=torch.float64)
    as_tensors, as_floats = recorder(), recorder()
    train_on_values([MovingAverageSummary(), as_tensors], list(numbers), log_every=5)
    train_on_values([MovingAverageSummary(), as_floats], numbers.tolist(), log_every=5)
    assert as_tensors.steps == as_floats.steps


def test_unread_values_are_not_waited_for_and_do_not_accumulate(train_on_values):
    values = [Slow(1.0) for _ in range(3000)]
    callback = MovingAverageSummary(["loss"])
    run = train_on_values([callback], values)
    run.monitors.drain()
    assert threading.get_ident() not in {reader for value in values for reader in value.readers}
    assert callback._averages["loss"]._previous is None


def test_a_long_chain_of_unread_averages_can_be_read():
    average = None
    for _ in range(5000):
        average = Average(average, PendingOne(), 0.95)
    assert float(average) == pytest.approx(1.0)
    assert not average.is_pending


class PendingOne:
    is_pending = True

    def __float__(self):
        return 1.0


def test_several_threads_can_read_the_same_average():
    average = None
    for _ in range(2000):
        average = Average(average, PendingOne(), 0.5)
    results = []
    threads = [threading.Thread(target=lambda: results.append(float(average))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 8


def test_a_loaded_state_continues_the_average(train_on_values, recorder):
    values = [5.0, 1.0, 7.0, 3.0, 9.0]
    whole = recorder()
    train_on_values([MovingAverageSummary(), whole], values)
    first, second = MovingAverageSummary(), MovingAverageSummary()
    train_on_values([first], values[:2])
    state = pickle.loads(pickle.dumps(first.state_dict()))
    rest = recorder()
    with Loop([second, rest], log_every=1) as run:
        second.load_state_dict(state)
        for value in run.batches(values[2:]):
            run.log(loss=value, other=1.0)
    assert [row for _, row in rest.steps] == [row for _, row in whole.steps[2:]]


def test_the_state_contains_plain_floats(train_on_values):
    callback = MovingAverageSummary(decay=0.5)
    train_on_values([callback], [torch.tensor(4.0), torch.tensor(2.0)])
    assert callback.state_dict() == {"sums": {"loss": [2.0, 0.75], "other": [0.75, 0.75]}}


def test_a_second_run_starts_from_scratch(train_on_values, recorder):
    callback, monitor = MovingAverageSummary(), recorder()
    train_on_values([callback], [100.0])
    train_on_values([callback, monitor], [1.0])
    assert monitor.steps[0][1]["loss/ema"] == 1.0


def test_the_callback_listens_at_no_point_of_a_step():
    assert Loop([MovingAverageSummary()]).hooks.dispatch("on_train_iter_end", "on_iter_end", mode="train") is None


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2, math.nan])
def test_an_invalid_decay_raises(decay):
    with pytest.raises(ValueError, match=f"got {decay}"):
        MovingAverageSummary(decay=decay)
