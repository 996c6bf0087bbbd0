from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios

import pytest
import torch

import hookpoint
from hookpoint import Every, LambdaCallback
from hookpoint.callbacks import ModelSaver
from hookpoint.core.errors import BadArgument, BadSchedule
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import ScalarPrinter


@pytest.fixture
def train_printed(train):
    """Train `epochs` epochs, and validate after each."""

    def step(run, batch):
        run.log(loss=torch.tensor(batch / 7), accuracy=0.5)

    def validate(run):
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=123456.789 * run.epoch)

    def go(callbacks, *, epochs=2, batches=4, log_every=2):
        return train(callbacks, epochs=epochs, batches=batches, step=step, epoch_end=validate, log_every=log_every)

    return go


def test_an_epoch_is_one_line_with_all_its_values(train_printed, capsys):
    train_printed([LambdaCallback(on_epoch_end=lambda run: run.log(zeta=1e-10)), ScalarPrinter()])
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err == (
        "epoch 1/2  accuracy: 0.5  loss: 0.21429  val_loss: 1.2346e+05  zeta: 1e-10\n"
        "epoch 2/2  accuracy: 0.5  loss: 0.21429  val_loss: 2.4691e+05  zeta: 1e-10\n"
    )


def test_values_logged_before_the_first_batch_belong_to_the_epoch(train_printed, capsys):
    train_printed([LambdaCallback(on_epoch_begin=lambda run: run.log(rate=run.epoch)), ScalarPrinter(whitelist=["rate"])])
    assert capsys.readouterr().err == "epoch 1/2  rate: 1\nepoch 2/2  rate: 2\n"


@pytest.mark.parametrize(("save", "cut_at"), [(Every(steps=2), 3), (Every(steps=1), 4), (Every(epochs=1), 5)], ids=str)
def test_a_resumed_epoch_includes_values_from_before_the_checkpoint(train_public, cut_off, tmp_path, capsys, save, cut_at):
    def go(workdir, **given):
        begin = lambda run: run.log(rate=1 / run.epoch)  # noqa: E731
        step = lambda run, batch: run.log(loss=batch / 7)  # noqa: E731
        callbacks = [ScalarPrinter(), ModelSaver().when(save)]
        train_public(callbacks, epochs=2, epoch_begin=begin, step=step, workdir=workdir, **given)
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]

    whole = go(tmp_path / "whole")
    with pytest.raises(cut_off):
        go(tmp_path / "cut", cut_at=cut_at)
    capsys.readouterr()
    resumed = go(tmp_path / "cut")
    assert resumed == whole[-len(resumed) :]
    assert "rate: 1 " in f"{whole[0]} "


def test_an_epoch_is_printed_as_soon_as_it_ends(capsys):
    with Loop([ScalarPrinter()]) as run:
        for _ in run.epochs():
            for _ in run.batches(range(3)):
                run.log(loss=1.0)
            break
        run.log(other=1.0)
        run.monitors.drain()
        assert capsys.readouterr().err == "epoch 1 (cut short)  loss: 1\n"


def test_values_logged_after_the_last_epoch_are_printed(capsys):
    with Loop([ScalarPrinter()]) as run:
        for _ in run.batches(range(3)):
            run.log(loss=1.0)
        run.log(test=2.0)
    assert capsys.readouterr().err == "epoch 1  loss: 1\nafter the last epoch  test: 2\n"


def test_values_after_the_last_epoch_are_not_printed_again_in_a_later_epoch(tmp_path, capsys):
    for epochs in (1, 2):
        saver = ModelSaver().when(Every(epochs=2))
        with hookpoint.Loop([saver], monitors=[ScalarPrinter()], extra_callbacks=[], workdir=tmp_path) as run:
            for epoch in run.epochs(epochs):
                run.log(loss=epoch)
            if epochs == 1:
                run.log(test=2.0)
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("Resuming run from")]
    assert lines == ["epoch 1/1  loss: 1", "after the last epoch  test: 2", "epoch 2/2  loss: 2"]


def test_an_epoch_interrupted_by_an_exception_is_labeled(capsys):
    with pytest.raises(ValueError, match="bad sample"), Loop([ScalarPrinter()]) as run:
        for epoch in run.epochs(5):
            for value in run.batches([1.0, 2.0]):
                run.log(loss=value)
            for _ in run.batches([3.0], mode="val"):
                if epoch == 2:
                    raise ValueError("bad sample")
    assert capsys.readouterr().err == "epoch 1/5  loss: 1.5\nepoch 2/5 (interrupted)  loss: 1.5\n"


def test_an_epoch_whose_end_fails_is_named(capsys):
    def fail(run):
        raise ValueError("no metric")

    with pytest.raises(ValueError, match="no metric"), Loop([LambdaCallback(on_epoch_end=fail), ScalarPrinter()]) as run:
        for _ in run.epochs(5):
            run.log(loss=0.5)
    assert capsys.readouterr().err == "epoch 1/5 (interrupted)  loss: 0.5\n"


def test_steps_are_printed_when_requested(train_printed, capsys):
    train_printed([ScalarPrinter(enable_step=True, enable_epoch=False)], epochs=1)
    assert capsys.readouterr().err == "step 2  accuracy: 0.5  loss: 0.071429\nstep 4  accuracy: 0.5  loss: 0.35714\n"


def test_nothing_is_printed_without_steps_and_epochs(train_printed, capsys):
    train_printed([ScalarPrinter(enable_epoch=False)])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("lists", "names"),
    [
        ({"whitelist": ["loss"]}, {"loss", "val_loss"}),
        ({"whitelist": ["^loss"]}, {"loss"}),
        ({"blacklist": ["loss"]}, {"accuracy"}),
        ({"whitelist": ["loss"], "blacklist": ["^val"]}, {"loss"}),
        ({"whitelist": "^loss$"}, {"loss"}),
        ({"whitelist": []}, set()),
        ({"blacklist": []}, {"accuracy", "loss", "val_loss"}),
    ],
    ids=range(7),
)
def test_whitelist_and_blacklist_select_names(train_printed, capsys, lists, names):
    train_printed([ScalarPrinter(**lists)], epochs=1)
    assert set(re.findall(r"(\w+):", capsys.readouterr().err)) == names


def test_non_finite_numbers_are_printed(capsys):
    with Loop([ScalarPrinter()]) as run:
        run.log(a=float("nan"), b=float("-inf"))
    assert capsys.readouterr().err == "after the last epoch  a: nan  b: -inf\n"


def test_control_characters_in_names_are_replaced(capsys):
    with Loop([ScalarPrinter()]) as run:
        run.log({"a\x1b[2J\nb": 1.0})
    assert capsys.readouterr().err == "after the last epoch  a?[2J?b: 1\n"


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (80, ["epoch 1/1  accuracy: 0.5  loss: 0.21429  val_loss: 1.2346e+05"]),
        (40, ["epoch 1/1  accuracy: 0.5  loss: 0.21429", "    val_loss: 1.2346e+05"]),
    ],
)
def test_a_narrow_terminal_gets_more_lines(train_printed, monkeypatch, columns, lines):
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(child, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        train_printed([ScalarPrinter()], epochs=1)
        written = os.read(parent, 65536).decode()
    os.close(parent)
    assert written.splitlines() == lines


def test_a_second_run_does_not_print_values_of_the_first(capsys):
    printer = ScalarPrinter()
    with Loop([printer], run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    with Loop([printer]) as run:
        run.log(x=1.0)
    assert capsys.readouterr().err == "after the last epoch  x: 1\n"


def test_the_output_is_deterministic(train_printed, capsys):
    written = set()
    for _ in range(20):
        train_printed([ScalarPrinter(enable_step=True)], epochs=3, batches=7, log_every=1)
        written.add(capsys.readouterr().err)
    assert len(written) == 1


# Every n epochs


def test_every_nth_epoch_and_the_last_are_printed(train_printed, capsys):
    train_printed([ScalarPrinter(whitelist=["val_loss"], every_n_epochs=2)], epochs=5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["epoch 2/5", "epoch 4/5", "epoch 5/5"]
    assert lines[1] == "epoch 4/5  val_loss: 4.9383e+05"


def test_values_of_skipped_epochs_are_not_printed_later(capsys):
    with Loop([ScalarPrinter(every_n_epochs=2)]) as run:
        for epoch in run.epochs(4):
            run.log({f"value{epoch}": 1.0})
    assert capsys.readouterr().err == "epoch 2/4  value2: 1\nepoch 4/4  value4: 1\n"


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "2"])
def test_an_invalid_number_of_epochs_raises(every):
    with pytest.raises(BadSchedule) as caught:
        ScalarPrinter(every_n_epochs=every)
    assert str(caught.value) == f"ScalarPrinter: every_n_epochs must be an integer ≥ 1, got {every!r}."


@pytest.mark.parametrize("argument", ["whitelist", "blacklist"])
@pytest.mark.parametrize("patterns", [["("], "*", 3, [None]])
def test_an_invalid_regular_expression_raises(argument, patterns):
    with pytest.raises(BadArgument, match=f"{argument} must be a list of regular expressions"):
        ScalarPrinter(**{argument: patterns})
