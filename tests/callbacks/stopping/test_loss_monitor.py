from __future__ import annotations

import math
import pickle

import pytest
import torch

from hookpoint import Runner, on
from hookpoint.callbacks import LossMonitor, ModelSaver
from hookpoint.core.errors import MissingMetric, NonFiniteLoss
from hookpoint.core.loop.loop import Loop
from hookpoint.core.run.run import Run


def test_each_loss_is_printed_like_in_mindspore(train_on_losses, capsys):
    train_on_losses([LossMonitor()], [0.5, 0.25], epochs=2)
    assert capsys.readouterr().err.splitlines() == [
        "epoch: 1 step: 1, loss is 0.5",
        "epoch: 1 step: 2, loss is 0.25",
        "epoch: 2 step: 1, loss is 0.5",
        "epoch: 2 step: 2, loss is 0.25",
    ]


def test_a_loss_can_be_printed_every_n_steps(train_on_losses, capsys):
    train_on_losses([LossMonitor(3)], [1.0, 2.0, 3.0, 4.0], epochs=2)
    assert capsys.readouterr().err.splitlines() == ["epoch: 1 step: 3, loss is 3", "epoch: 2 step: 2, loss is 2"]


def test_per_print_times_0_prints_nothing(train_on_losses, capsys):
    train_on_losses([LossMonitor(0)], [1.0])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "loss",
    [
        torch.tensor(0.5),
        torch.tensor([0.5]),
        torch.tensor([[0.25, 0.75]]),
        (0.5, 9.0),
        {"a": torch.tensor(0.5), "b": 1.0},
        [0.5],
    ],
)
def test_losses_of_all_kinds_are_printed(train_on_losses, capsys, loss):
    train_on_losses([LossMonitor()], [loss])
    assert capsys.readouterr().err == "epoch: 1 step: 1, loss is 0.5\n"


def test_a_logged_loss_is_printed(train_on_losses, capsys):
    train_on_losses([LossMonitor()], [0.5, 0.25], how="log")
    assert capsys.readouterr().err.splitlines() == ["epoch: 1 step: 1, loss is 0.5", "epoch: 1 step: 2, loss is 0.25"]


@pytest.mark.parametrize("log_every", [0, 1, 2, 50])
@pytest.mark.parametrize("log", [Run.log, Run.put_scalar])
def test_an_iteration_without_a_loss_prints_nothing(capsys, log, log_every):
    with Loop([LossMonitor()], log_every=log_every) as run:
        for epoch in run.epochs(2):
            for number in run.batches(range(6)):
                if number % 3 == 1 and epoch == 1:
                    log(run, "loss", 0.5)
                    assert run.metrics["loss"] == 0.5
    assert capsys.readouterr().err.splitlines() == [f"epoch: 1 step: {step}, loss is 0.5" for step in (2, 5)]


@pytest.mark.parametrize("per_print_times", [0, 1, 7])
@pytest.mark.parametrize("how", ["set", "log"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_a_nonfinite_loss_ends_the_run_at_its_step(train_on_losses, bad, how, per_print_times):
    with pytest.raises(NonFiniteLoss) as caught:
        train_on_losses([LossMonitor(per_print_times)], [0.5, 0.25, bad, 0.125], epochs=2, how=how)
    error = caught.value
    assert (error.step, error.epoch) == (3, 1)
    assert str(error.value) == str(float(bad))
    assert str(error).startswith(f"the loss is {float(bad)} at step 3, in epoch 1.\n")
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.step, str(copy)) == (3, str(error))


@pytest.mark.parametrize(
    "loss", [(0.5, math.nan), [torch.tensor(0.5), (1.0, torch.tensor(math.inf))], {"a": 1.0, "b": math.nan}]
)
def test_every_part_of_a_loss_is_checked(train_on_losses, loss):
    with pytest.raises(NonFiniteLoss):
        train_on_losses([LossMonitor()], [loss])


def test_every_element_of_a_tensor_is_checked(train_on_losses):
    with pytest.raises(NonFiniteLoss):
        train_on_losses([LossMonitor(0)], [torch.tensor([0.5, math.nan, 0.25])])


def test_a_late_loss_is_reported_with_its_own_step(train_on_losses):
    class Distant:
        def __init__(self, value):
            self.value = value

        def __float__(self):
            return self.value

    with pytest.raises(NonFiniteLoss) as caught:
        train_on_losses([LossMonitor(0)], [Distant(1.0), Distant(math.nan), Distant(1.0), Distant(1.0)])
    assert caught.value.step == 2
    assert "Detected at step 4, because training does not wait" in str(caught.value)


def test_a_run_without_a_loss_raises(train_on_losses):
    with pytest.raises(MissingMetric, match=r"^LossMonitor reads 'loss', and run.loss is not set either"):
        train_on_losses([LossMonitor()], [1.0], how="neither")


def test_a_second_run_starts_from_scratch(train_on_losses, capsys):
    callback = LossMonitor(2)
    for _ in range(2):
        train_on_losses([callback], [1.0, 2.0, 3.0])
    assert capsys.readouterr().err.splitlines() == ["epoch: 1 step: 2, loss is 2"] * 2


def test_a_run_resumed_at_the_end_of_a_pass_misses_no_loss(train_on_losses, cut_off, saves, disk):
    @on("on_train_epoch_end")
    def cuts(run):
        raise cut_off

    with pytest.raises(cut_off):
        train_on_losses([LossMonitor(0), saves(), cuts], [1.0, 2.0], store=disk)
    assert train_on_losses([LossMonitor(0), saves()], [1.0, 2.0], store=disk).step == 2


def test_the_last_valid_checkpoint_stays_the_newest(tmp_path):
    model = torch.nn.Linear(1, 1)
    data = torch.ones(12, 1)
    data[9] = math.nan
    saver = ModelSaver()
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.MSELoss(),
        callbacks=[saver, LossMonitor(0)],
        monitors=[],
        extra_callbacks=[],
        workdir=tmp_path,
    )
    good = [(data[:4], data[:4])] * 2
    runner.fit(good, epochs=1)
    with pytest.raises(NonFiniteLoss):
        runner.fit([(data[:4], data[:4]), (data[8:], data[8:])], epochs=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith("step")) == [
        "step-00000002"
    ]


@pytest.mark.parametrize("times", [-1, 1.5, True, "3"])
def test_an_invalid_number_of_steps_raises(times):
    with pytest.raises(ValueError, match="per_print_times must be an integer"):
        LossMonitor(times)
