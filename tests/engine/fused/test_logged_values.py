from __future__ import annotations

import pytest
import torch

from hookpoint import Loop
from hookpoint.core.errors import BadValue
from hookpoint.core.loop.services import machine_of
from hookpoint.engine.fused._logged_values import LoggedValues

META = torch.device("meta")  # a device other than the CPU, for tests without a GPU


@pytest.fixture
def run():
    with Loop([], extra_callbacks=[], monitors=[]) as run:
        yield run


@pytest.fixture
def logged(run):
    return LoggedValues(machine_of(run).logbook, run.monitors)


def test_a_capture_records_tensors_instead_of_logging_them(run, logged):
    for _ in run.batches([1]):
        with logged.recording() as recorded:
            run.log(hidden=torch.zeros((), device=META, requires_grad=True))
            run.log(hidden=torch.ones((), device=META))
        assert [name for name, _ in recorded] == ["hidden", "hidden"]
        assert not recorded[0][1].requires_grad
        assert "hidden" not in run.metrics
        run.log(loss=2.0)
    assert run.metrics["loss"] == 2.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3.0, "'x' is 3.0: in a CUDA graph, the forward can log only tensors on the GPU."),
        (torch.zeros(()), "'x' is a tensor on the CPU: in a CUDA graph, the forward can log only tensors on the GPU."),
    ],
)
def test_logging_a_value_that_is_not_a_gpu_tensor_raises(run, logged, value, text):
    for _ in run.batches([1]):
        with logged.recording(), pytest.raises(BadValue) as error:
            run.log(x=value)
        assert str(error.value).startswith(text)


@pytest.mark.parametrize("put", [lambda run: run.put_scalar("x", 1.0), lambda run: run.put_text("x", "y")])
def test_put_scalar_and_put_text_raise_during_a_capture(run, logged, put):
    for _ in run.batches([1]):
        with logged.recording(), pytest.raises(BadValue, match=r"the forward can log only with run\.log and hookpoint\.log"):
            put(run)
        put(run)


def test_logging_is_restored_at_the_end(run, logged):
    logbook = machine_of(run).logbook
    waits = []
    logged.begin(lambda: waits.append(1))
    for _ in run.batches([1]):
        run.log(x=1.0)
        run.put_scalar("y", 2.0)
        run.put_text("note", "y")
    logged.end()
    assert waits
    assert not {"log", "put"} & set(vars(logbook))
    assert "put" not in vars(run.monitors)
    assert run.metrics["x"] == 1.0
