from __future__ import annotations

import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from tests.core.log.device_tensor import Tensor

from hookpoint import LambdaCallback
from hookpoint.core.errors import BadValue
from hookpoint.core.loop.loop import Loop

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
def test_a_value_that_is_not_a_scalar_raises_when_logged(value, message):
    with Loop() as run, pytest.raises(BadValue) as caught:
        run.log(x=value)
    assert str(caught.value) == message
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_complex_tensor_raises_when_logged(device):
    torch = pytest.importorskip("torch")
    with Loop() as run, pytest.raises(BadValue) as caught:
        run.log(phase=torch.ones((), dtype=torch.complex64, device=device))
    assert str(caught.value).startswith("'phase' is complex" if device == "cpu" else "'phase' is on the meta device")


@pytest.mark.parametrize("shape", [(), (1, 1)])
@pytest.mark.parametrize("in_pass", [False, True])
def test_a_meta_tensor_raises_when_logged(shape, in_pass):
    torch = pytest.importorskip("torch")
    with Loop() as run:
        for _ in run.batches("a") if in_pass else "a":
            with pytest.raises(BadValue) as caught:
                run.log("norm", torch.ones(shape, device="meta"))
    cure = "\n  log       a tensor that has data, on the CPU or a GPU"
    assert str(caught.value) == f"'norm' is on the meta device and has no value.{cure}"


def test_complex_arrays_and_tensors_of_one_element_raise():
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    for value in (torch.ones(1, 1, dtype=torch.complex128), numpy.complex64(1), numpy.ones(1, dtype=complex)):
        with Loop() as run, pytest.raises(BadValue) as caught:
            run.log("phase", value)
        assert str(caught.value) == (
            "'phase' is complex; expected a real number.\n  log       its magnitude, or each part under its own name"
        )


@pytest.mark.parametrize("value", [np.array([0.5]), np.array([[0.5]]), np.array(0.5), np.float32(0.5)])
@pytest.mark.parametrize("in_pass", [False, True])
def test_an_array_of_one_element_is_logged(value, in_pass):
    with Loop() as run:
        for _ in run.batches([1, 2]) if in_pass else [1]:
            run.log(x=value)
    assert run.metrics["x"] == 0.5


def test_an_array_of_one_string_raises():
    with Loop() as run, pytest.raises(BadValue, match="expected a number"):
        run.log(x=np.array(["a"]))


# Without waiting for the device


@pytest.mark.parametrize("monitors", [0, 1, 2])
def test_tensors_are_read_only_off_the_training_thread(monitors, new_monitor):
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


def test_an_unresponsive_device_does_not_delay_log_steps(monitor):
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


def test_a_metric_is_read_from_the_device_only_once():
    reads = []
    with Loop() as run:
        run.log("x", Tensor(1, wait=lambda: reads.append("read")))
        assert (run.metrics["x"], run.metrics["x"]) == (1.0, 1.0)
        assert reads == ["read"]


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
