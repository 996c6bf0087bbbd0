from __future__ import annotations

import numpy
import pytest
import torch

from hookpoint import Every, Loop, Runner
from hookpoint.callbacks import TensorPrinter
from hookpoint.callbacks.tensors.tensor_printer import ShownTensor, first_elements


def lines(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]


def set_outputs(run, batch):
    run.outputs = torch.arange(12.0).reshape(3, 4) + batch
    run.loss = batch / 2


def test_each_step_prints_a_line(train_public, capsys):
    train_public([TensorPrinter(["loss", "outputs"], most=3)], epochs=2, batches=2, step=set_outputs)
    assert lines(capsys) == [
        "step 1: loss 0, outputs 3 x 4 [0 1 2 ...]",
        "step 2: loss 0.5, outputs 3 x 4 [1 2 3 ...]",
        "step 3: loss 0, outputs 3 x 4 [0 1 2 ...]",
        "step 4: loss 0.5, outputs 3 x 4 [1 2 3 ...]",
    ]


def test_a_schedule_decides_when_to_print(train_public, capsys):
    train_public([TensorPrinter("loss").when(Every(steps=2) | Every(epochs=1))], epochs=2, step=set_outputs)
    assert lines(capsys) == ["step 2: loss 0.5", "step 3: loss 1", "step 4: loss 0", "step 6: loss 1", "step 6: loss 1"]


def test_control_characters_in_names_are_replaced(train_public, capsys):
    train_public([TensorPrinter({"a\x1b[2J": "loss"})], epochs=2, batches=1, step=set_outputs)
    assert lines(capsys)[0] == "step 1: a?[2J 0"


def test_gradients_of_a_runner_are_printed(capsys):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    printer = TensorPrinter(["bias.grad", "loss"])
    given = {"extra_callbacks": [], "monitors": []}
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=[printer], **given)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    runner.fit([(torch.ones(2, 1), torch.ones(2, 1))], epochs=1)
    assert lines(capsys) == ["step 1: bias.grad 1 [-2], loss 1"]


# Values that have not arrived, like those on a GPU


class Slow(torch.Tensor):
    """A number on a device, until it has arrived on the host."""

    arrived = 0

    @property
    def is_cpu(self):
        return self.item() <= Slow.arrived


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(Slow, "arrived", 0)
    return {"value": lambda run: torch.tensor(run.step).as_subclass(Slow)}


def test_lines_are_printed_in_order_at_the_latest_at_the_end_of_the_epoch(slow, capsys):
    said = []
    with Loop([TensorPrinter(slow)], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(4)):
                said.append(lines(capsys))
                Slow.arrived = 2 if batch == 3 else 0
    value = [f"step {step}: value {step}" for step in range(9)]
    assert said[:4] == [[], [], [], []]
    assert said[4:] == [value[1:5], [], [], []]
    assert lines(capsys) == value[5:]
    assert run.step == 8


def test_a_value_is_printed_when_it_arrives(slow, capsys):
    with Loop([TensorPrinter(slow).when(Every(steps=3))], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches(range(6)):
            assert lines(capsys) == (["step 3: value 3"] if batch == 5 else [])
            Slow.arrived = 3 if batch == 4 else 0
    assert run.step == 6


def test_an_exception_hides_no_line(train_public, cut_off, slow, capsys):
    with pytest.raises(cut_off):
        train_public([TensorPrinter(slow)], epochs=2, cut_at=3, step=set_outputs)
    assert lines(capsys) == ["step 1: value 1", "step 2: value 2"]


def test_at_most_48_lines_wait(slow, capsys):
    with Loop([TensorPrinter(slow)], extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches(range(60)):
            if batch == 50:
                assert lines(capsys) == ["step 1: value 1", "step 2: value 2"]
    assert run.step == 60


def test_a_printer_can_be_reused(train_public, slow, capsys):
    printer = TensorPrinter(slow)
    for _ in range(2):
        train_public([printer], epochs=2, batches=1, step=set_outputs)
        assert lines(capsys) == ["step 1: value 1", "step 2: value 2"]


@pytest.mark.parametrize("most", [0, -1, 2.5, True])
def test_an_invalid_number_of_elements_raises(most):
    with pytest.raises(ValueError, match="an integer >= 1"):
        TensorPrinter("loss", most=most)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.25, "x 0.25"),
        (3, "x 3"),
        (torch.tensor(1 / 3), "x 0.333333"),
        (torch.tensor(True), "x True"),
        (torch.tensor([1, 2]), "x 2 [1 2]"),
        (torch.arange(4).reshape(2, 2), "x 2 x 2 [0 1 2 3]"),
        (torch.arange(6.0).reshape(2, 3), "x 2 x 3 [0 1 2 3 ...]"),
        (torch.zeros(0, 3), "x 0 x 3 []"),
        (torch.tensor([0.5], dtype=torch.bfloat16), "x 1 [0.5]"),
        (torch.tensor([float("nan")]), "x 1 [nan]"),
        (numpy.float32(0.5), "x 0.5"),
        (numpy.arange(9), "x 9 [0 1 2 3 ...]"),
        (torch.eye(3).to_sparse(), "x 3 x 3 [1 1 1]"),
    ],
)
def test_a_value_is_shown_in_a_short_line(value, expected):
    shown = ShownTensor("x", value, 4)
    assert shown.is_ready
    assert str(shown) == expected


@pytest.mark.parametrize("make", [torch.arange, numpy.arange])
@pytest.mark.parametrize("shape", [(24,), (2, 12), (2, 3, 4), (4, 3, 2), (24, 1), (1, 24)])
@pytest.mark.parametrize("most", [1, 2, 5, 7, 30])
def test_the_first_elements_are_in_order_for_any_shape(make, shape, most):
    assert first_elements(make(24).reshape(shape), most).tolist() == list(range(min(most, 24)))


def test_only_the_shown_part_of_a_large_tensor_is_copied():
    big = torch.zeros(1000, 1000).T
    assert ShownTensor("x", big, 4)._values._copy.untyped_storage().nbytes() == 4 * 4


@pytest.mark.parametrize("value", [torch.ones(2), numpy.ones(2)])
def test_a_shown_tensor_keeps_its_values(value):
    shown = ShownTensor("x", value, 4)
    value[:] = 9
    assert str(shown) == "x 2 [1 1]"
