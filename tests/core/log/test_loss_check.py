from __future__ import annotations

import logging
import math
import threading

import pytest

from hookpoint import Callback
from hookpoint.core.errors import NonFiniteLoss
from hookpoint.core.loop.loop import Loop

NAN, INF = math.nan, math.inf


class OnDevice:
    """A value on a device; reading it calls `wait`."""

    shape = ()

    def __init__(self, value, wait=lambda: None):
        self.value, self.wait = value, wait

    def detach(self):
        return self

    def __float__(self):
        self.wait()
        return self.value


def log_losses(losses, *callbacks, epochs=1, log_every=2, kind=float, name="loss", **options):
    with Loop(callbacks, log_every=log_every, **options) as run:
        for _ in run.epochs(epochs):
            for loss in run.batches(losses):
                run.log(name, kind(loss))
    return run


def ends(losses, **options):
    """Return the step at which the loop raises NonFiniteLoss, or None."""
    steps = []

    class Count(Callback):
        def on_train_iter_end(self, run):
            steps.append(run.step)

    try:
        log_losses(losses, Count(), on_nonfinite="raise", **options)
    except NonFiniteLoss:
        return steps[-1]
    return None


# When the run ends


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([1.0, 1.0, NAN, NAN, INF, -INF, NAN, 1.0], 6),
        ([1.0, NAN, NAN, NAN, 1.0, NAN, NAN, NAN], None),
        ([NAN, NAN, 1.0, NAN, NAN, NAN, NAN, 1.0], None),
        ([NAN, NAN, NAN], 3),
        ([NAN, 1.0, NAN], None),
        ([1e308, 1e308, 1e308, 1e308, 1e308], None),
    ],
)
@pytest.mark.parametrize("kind", [float, OnDevice])
def test_two_log_steps_or_an_epoch_without_a_finite_loss_end_the_run(losses, step, kind):
    late = 2 if kind is OnDevice and step == 6 else 0  # seen at the next log step
    assert ends(losses, kind=kind) == (None if step is None else step + late)


def test_consecutive_log_steps_can_span_two_epochs():
    assert ends([1.0, 1.0, NAN, NAN], epochs=2, log_every=2) is None
    losses = iter([1.0, 1.0, NAN, NAN, NAN, NAN, 1.0, 1.0])

    class Losses:
        def __iter__(self):
            return iter([next(losses) for _ in range(4)])

    assert ends(Losses(), epochs=2) == 6


def test_without_log_steps_an_epoch_without_a_finite_loss_ends_the_run():
    assert ends([NAN] * 9, log_every=0) == 9
    assert ends([NAN] * 8 + [1.0], log_every=0) is None
    assert ends([NAN] * 200, log_every=0, kind=OnDevice) == 200


def test_an_epoch_left_early_does_not_count():
    with Loop(on_nonfinite="raise") as run:
        for _ in run.epochs(2):
            for _batch in run.batches(range(9)):
                run.log(loss=NAN)
                break
    assert run.epoch == 2


def test_other_names_and_validation_do_not_count():
    assert ends([NAN] * 9, name="reward") is None
    with Loop(on_nonfinite="raise") as run:
        for _ in run.batches(range(4), mode="val"):
            run.log(loss=NAN)
    assert math.isnan(run.metrics["val_loss"])


def test_a_stop_at_a_nonfinite_loss_takes_precedence_over_the_error():
    class Stop(Callback):
        def on_train_iter_end(self, run):
            run.stop("no loss")

    assert log_losses([NAN], Stop(), log_every=1, on_nonfinite="raise").step == 1


def test_a_callback_that_handles_nonfinite_losses_replaces_the_check():
    class Handles(Callback):
        handles_nonfinite_loss = True

        def on_epoch_end(self): ...

    assert log_losses([NAN] * 9, Handles(), on_nonfinite="raise").step == 9


# Messages


def test_the_error_names_the_log_steps():
    with pytest.raises(NonFiniteLoss) as caught:
        log_losses([1.0, 1.0, NAN, NAN, NAN, NAN, 1.0, 1.0], kind=OnDevice, on_nonfinite="raise")
    assert str(caught.value) == (
        "all losses at log steps 4 and 6 are NaN or infinite, in epoch 1. Detected at step 8, because training does"
        " not wait for values on the device.\n"
        "  resume    from the last good checkpoint\n"
        "  lower     the learning rate, clip gradients, or inspect this step's data\n"
        '  continue  anyway with Runner(on_nonfinite="warn")'
    )
    assert (caught.value.epoch, caught.value.step, math.isnan(caught.value.value)) == (1, 6, True)


@pytest.mark.parametrize("kind", [float, OnDevice])
def test_a_loop_warns_once_until_a_loss_is_finite_again(kind, caplog):
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        assert log_losses([NAN] * 6 + [1.0, 1.0] + [INF] * 6 + [1.0], kind=kind).step == 15
    assert [record.message for record in caplog.records] == [
        "all losses at log steps 2 and 4 are NaN or infinite, in epoch 1: the mean at step 4 is nan; training continues",
        "all losses at log steps 10 and 12 are NaN or infinite, in epoch 1: the mean at step 12 is inf; training continues",
    ]


def test_a_loop_that_warns_does_not_wait_for_the_device(caplog):
    answer, in_time = threading.Event(), []

    def late(value):
        return OnDevice(value, wait=lambda: in_time.append(answer.wait(10)))

    class Answer(Callback):
        def on_run_end(self):
            answer.set()  # only now: a wait before this times out

    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        log_losses([NAN] * 8, Answer(), kind=late)
    assert all(in_time)
    assert "all losses at log steps 2 and 4 are NaN or infinite" in caplog.text


# Resuming


class SaveAt(Callback):
    saves = True

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_iter_end(self, run):
        if run.step == self.step:
            run.save("mine")


class KillAt(Callback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_iter_begin(self, run):
        if run.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [float, OnDevice])
@pytest.mark.parametrize("killed_at", [3, 4, 5])
def test_a_resumed_run_ends_at_the_same_step(kind, killed_at, disk):
    losses = [1.0, 1.0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 1.0]
    with pytest.raises(KeyboardInterrupt):
        log_losses(losses, SaveAt(killed_at), KillAt(killed_at), kind=kind, store=disk, on_nonfinite="raise")
    assert len(disk.checkpoints) == 1
    assert ends(losses, kind=kind, store=disk) == ends(losses, kind=kind)


def test_a_checkpoint_without_the_counts_can_be_resumed(disk):
    losses = [NAN, NAN, NAN, NAN, 1.0, 1.0]
    with pytest.raises(KeyboardInterrupt):
        log_losses(losses, SaveAt(3), KillAt(3), store=disk)
    disk.change(lambda state: state["logbook"].pop("loss_check"))
    assert ends(losses, store=disk) is None
