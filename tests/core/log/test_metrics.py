from __future__ import annotations

import json
import math
import random
import sys
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from hookpoint import LambdaCallback
from hookpoint.core.errors import BadValue, MissingMetric
from hookpoint.core.log.metrics import Mean, Metrics
from hookpoint.core.loop.loop import Loop
from hookpoint.core.schedule.moment import Moment

MOST = sys.float_info.max


class Tensor:
    """A value on a device: reading it as a float takes a wait, so it matters on which thread that happens."""

    read_on: set[str]

    def __init__(self, value, shape=(), *, read_on=None, wait=lambda: None):
        self.value, self.shape = value, shape
        self.read_on = set() if read_on is None else read_on
        self.wait = wait
        self.has_graph = True

    def detach(self):
        bare = Tensor(self.value, self.shape, read_on=self.read_on, wait=self.wait)
        bare.has_graph = False
        return bare

    def __float__(self):
        assert not self.has_graph
        self.read_on.add(threading.current_thread().name)
        self.wait()
        return float(self.value)


# What can be logged


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2, 2.0),
        (2.5, 2.5),
        (True, 1.0),
        (Fraction(1, 2), 0.5),
        (Decimal("0.5"), 0.5),
        (Tensor(3), 3.0),
        (Tensor(3, (1, 1)), 3.0),
    ],
)
def test_numbers_and_tensors_of_one_element_are_logged(value, kept):
    with Loop() as run:
        run.log("x", value)
        for _ in run.batches("ab"):
            run.log("in_pass", value)
    assert dict(run.metrics) == {"x": kept, "in_pass": kept}
    assert type(run.metrics["x"]) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("high", "'x' is 'high'; expected a number.\n  write     run.put_text('x', ...)"),
        (b"high", "'x' is b'high'; expected a number.\n  write     run.put_text('x', ...)"),
        (None, "'x' is None; expected a number.\n  write     run.put_text('x', ...)"),
        ([1.0], "'x' is [1.0]; expected a number.\n  log       a number or a one-element tensor"),
        (1j, "'x' is 1j; expected a number.\n  log       a number or a one-element tensor"),
        (
            Tensor(0, (2, 3)),
            (
                "'x' has shape (2, 3); expected a scalar.\n"
                "  log       its mean, or each element under its own name\n"
                "  write     run.put_histogram('x', ...) for its distribution"
            ),
        ),
        (
            Tensor(0, (0,)),
            (
                "'x' has shape (0,); expected a scalar.\n"
                "  log       its mean, or each element under its own name\n"
                "  write     run.put_histogram('x', ...) for its distribution"
            ),
        ),
    ],
)
def test_what_is_no_scalar_is_refused_where_it_is_logged(value, message):
    with Loop() as run, pytest.raises(BadValue) as caught:
        run.log(x=value)
    assert str(caught.value) == message
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_complex_tensor_is_refused_where_it_is_logged(device):
    torch = pytest.importorskip("torch")
    with Loop() as run, pytest.raises(BadValue) as caught:
        run.log(phase=torch.ones((), dtype=torch.complex64, device=device))
    assert str(caught.value).startswith("'phase' is complex" if device == "cpu" else "'phase' is on the meta device")


@pytest.mark.parametrize("shape", [(), (1, 1)])
@pytest.mark.parametrize("in_pass", [False, True])
def test_a_meta_tensor_is_refused_where_it_is_logged(shape, in_pass):
    torch = pytest.importorskip("torch")
    with Loop() as run:
        for _ in run.batches("a") if in_pass else "a":
            with pytest.raises(BadValue) as caught:
                run.log("norm", torch.ones(shape, device="meta"))
    cure = "\n  log       a tensor that has data, on the CPU or a GPU"
    assert str(caught.value) == f"'norm' is on the meta device and has no value.{cure}"


def test_complex_arrays_and_tensors_of_one_element_are_refused():
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    for value in (torch.ones(1, 1, dtype=torch.complex128), numpy.complex64(1), numpy.ones(1, dtype=complex)):
        with Loop() as run, pytest.raises(BadValue) as caught:
            run.log("phase", value)
        assert str(caught.value) == (
            "'phase' is complex; expected a real number.\n  log       its magnitude, or each part under its own name"
        )


# The largest numbers


@pytest.fixture
def means(new_monitor):
    """Log values, and return the means of the log steps and the one of the pass."""

    def go(values, *, kind=float, log_every=2):
        monitor = new_monitor()
        with Loop([monitor], log_every=log_every) as run:
            for batch in run.batches([[value] * 3 for value in values]):  # of three samples each
                run.log(x=kind(batch[0]))
        return [*(scalars["x"] for _, scalars in monitor.scalars("step")), run.metrics["x"]]

    return go


@pytest.mark.parametrize("kind", [float, Tensor])
def test_the_largest_numbers_are_logged_as_they_are(kind, means):
    assert means([1e308] * 5, kind=kind) == [1e308] * 3
    assert means([MOST] * 7, kind=kind) == [MOST] * 4
    assert means([-MOST, -MOST, MOST, MOST, 1.0], kind=kind) == [-MOST, MOST, 0.2]
    assert means([1e308, 5e307], kind=kind, log_every=1) == [1e308, 5e307, 7.5e307]


@pytest.mark.parametrize("kind", [float, Tensor])
@pytest.mark.parametrize("bad", [math.inf, -math.inf])
def test_infinity_among_the_largest_numbers_stays_infinity(kind, bad, means):
    assert means([1e308, 1e308, bad, -1e308, 1e308], kind=kind) == [1e308, bad, bad]
    assert all(math.isnan(mean) for mean in means([1e308, math.nan, 1e308, math.nan], kind=kind))


def test_means_of_other_numbers_have_the_bits_of_plain_sums(means):
    generator = random.Random(7)
    values = [generator.uniform(-1e6, 1e6) for _ in range(60)]
    total = weight = 0.0
    for value in values:
        total, weight = total + value * 3, weight + 3
    assert means(values, log_every=0)[-1] == total / weight


def test_a_sum_beyond_all_floats_is_in_the_state():
    mean = Mean()
    for _ in range(3):
        mean.add(1e308, 2)
    again = Mean().restore(mean.state())
    again.add(-1e308, 2)
    assert float(again) == 5e307


# Without waiting for the device


@pytest.mark.parametrize("monitors", [0, 1, 2])
def test_tensors_become_floats_off_the_training_thread_only(monitors, new_monitor):
    read_on = set()
    watching = [new_monitor() for _ in range(monitors)]
    with Loop(watching, log_every=2) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(range(150)):
                run.log(loss=Tensor(batch, read_on=read_on), plain=batch)
            for batch in run.batches(range(150), mode="val"):
                run.log(loss=Tensor(batch, read_on=read_on))
            run.log(last=Tensor(epoch, read_on=read_on))
        run.monitors.drain()
        assert read_on
        assert threading.current_thread().name not in read_on
    assert run.monitors.get_history("loss") == [(150, 74.5), (300, 74.5)]
    assert run.metrics["val_loss"] == 74.5
    for monitor in watching:
        assert (2, {"loss": 0.5, "plain": 0.5}) in monitor.scalars("step")
        assert [step for step, values in monitor.scalars("epoch") if values == {"loss": 74.5, "plain": 74.5}] == [150, 300]


def test_a_device_that_does_not_answer_holds_up_no_log_step(monitor):
    asked, answer, answers_in_time = threading.Event(), threading.Event(), []

    def wait():
        asked.set()
        answers_in_time.append(answer.wait(10))

    with Loop([monitor], log_every=1) as run:
        for batch in run.batches(range(200)):
            run.log(loss=Tensor(batch, wait=wait))
            if batch == 1:
                asked.wait(10)  # from here on the monitor is in the middle of reading the first value
        answer.set()
    assert run.metrics["loss"] == 99.5
    assert all(answers_in_time)


def test_reading_a_metric_reads_it_once():
    reads = []
    with Loop() as run:
        run.log("x", Tensor(1, wait=lambda: reads.append("read")))
        assert (run.metrics["x"], run.metrics["x"]) == (1.0, 1.0)
        assert reads == ["read"]


def test_a_mean_is_right_whichever_part_of_it_was_read_before(monitor):
    with Loop([monitor], log_every=4) as run:
        for batch in run.batches([0, 0, 0, 0, 6, 6]):
            run.log(loss=Tensor(batch))
            if run.batch_idx == 4:
                run.monitors.drain()  # the monitor has read the mean of the first four
    assert run.metrics["loss"] == 2.0


def test_a_failed_read_loses_nothing():
    is_lost = True

    def wait():
        if is_lost:
            raise RuntimeError("the device is lost")

    with Loop([LambdaCallback(on_records=lambda records: None)]) as run:
        for batch in run.batches([1, 3]):
            run.log(loss=Tensor(batch, wait=wait))
        with pytest.raises(RuntimeError, match="the device is lost"):
            run.metrics["loss"]
        is_lost = False
        assert run.metrics["loss"] == 2.0


# Looking values up


def test_a_missing_metric_names_those_there_are():
    with Loop() as run:
        run.log(loss=1, acc=1)
        with pytest.raises(MissingMetric) as caught:
            run.monitors.get_latest("val_loss")
    assert str(caught.value) == (
        "there is no metric 'val_loss'.\n  known     acc, loss\n  log       run.log({\"val_loss\": value}) before it is read"
    )
    assert isinstance(caught.value, KeyError)
    assert run.metrics.get("val_loss") is None


def test_the_latest_value_and_the_history_of_final_ones():
    with Loop() as run:
        assert run.monitors.get_history("loss") == []
        for epoch in run.epochs(2):
            for batch in run.batches([0, 2]):
                run.log(loss=batch + epoch)
                assert run.monitors.get_latest("loss") == batch + epoch
            assert run.monitors.get_latest("loss") == epoch + 1
    assert run.monitors.get_history("loss") == [(2, 2.0), (4, 3.0)]


def test_the_history_keeps_the_last_ten_thousand():
    with Loop() as run:
        for number in range(10_001):
            run.log("x", number)
    history = run.monitors.get_history("x")
    assert (len(history), history[0], history[-1]) == (10_000, (0, 1.0), (0, 10_000.0))


def test_observations_count_final_values_only():
    with Loop() as run:
        for _ in run.epochs(2):
            for batch in run.batches([1, 2, 3]):
                run.log(loss=batch)
                assert run.metrics.observations("loss") == run.epoch - 1
        assert run.metrics.observations("loss") == 2
        assert run.metrics.observations("nobody") == 0


def test_metrics_read_like_a_mapping():
    with Loop() as run:
        run.log(a=1, b=2)
        assert ("a" in run.metrics, "c" in run.metrics, len(run.metrics), list(run.metrics)) == (True, False, 2, ["a", "b"])
        assert repr(run.metrics) == "Metrics(a, b)"
        for name in run.metrics:
            run.log({name + name: 1})  # logging while reading is fine
        assert repr(run.logs) == "Logs(a, b, aa, bb)"
        assert len(run.logs) == 4


def test_logs_say_what_they_lack():
    with Loop() as run:
        run.log(loss=1)
        with pytest.raises(MissingMetric, match="there is no metric 'acc'"):
            run.logs["acc"]


def test_the_newest_final_value_comes_with_its_moment():
    with Loop() as run:
        for epoch in run.epochs(2):
            run.log(score=epoch / 2)
        assert run.metrics.newest("score") == (Moment(2, 0, 0), 1.0)
        assert run.monitors.get_history("score") == [(0, 0.5), (0, 1.0)]


def test_moments_are_kept_and_older_states_have_the_step_only():
    first, second = Metrics(), Metrics()
    first.observe("score", 0.5, Moment(1, 4, 2))
    first.observe("score", 0.25, Moment(2, 8, 4))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.newest("score") == (Moment(2, 8, 4), 0.25)
    assert second.history("score") == [(2, 0.5), (4, 0.25)]
    second.load_state_dict({**first.state_dict(), "history": {"score": [[2, 0.5], [4, 0.25]]}})
    assert second.newest("score") == (Moment(2, None, 4), 0.25)
    assert second.history("score") == [(2, 0.5), (4, 0.25)]


@pytest.mark.parametrize("value", [np.array([0.5]), np.array([[0.5]]), np.array(0.5), np.float32(0.5)])
@pytest.mark.parametrize("in_pass", [False, True])
def test_an_array_of_one_element_is_logged(value, in_pass):
    with Loop() as run:
        for _ in run.batches([1, 2]) if in_pass else [1]:
            run.log(x=value)
    assert run.metrics["x"] == 0.5


def test_an_array_of_one_word_is_refused():
    with Loop() as run, pytest.raises(BadValue, match="expected a number"):
        run.log(x=np.array(["a"]))
