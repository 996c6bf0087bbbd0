from __future__ import annotations

import logging
import math

import pytest
from torch import nn

from hookpoint import Every, callbacks
from hookpoint.core.errors import BadLoop, NonFiniteLoss, NotFinite
from hookpoint.storage.workdir.find_checkpoint import newest_good


@pytest.fixture
def runner(runner):
    """Create a runner that logs every second step."""

    def make(*added, **options):
        quiet = {"extra_callbacks": [], "monitors": [], "log_every": 2, **options}
        return runner(*added, model=nn.Linear(4, 1), **quiet)

    return make


def test_a_diverged_run_raises_and_keeps_its_last_good_checkpoint(tmp_path, runner, noise):
    with pytest.raises(NonFiniteLoss, match=r"^all losses at log steps 6 and 8 are NaN or infinite, in epoch 1\."):
        runner(callbacks.ModelSaver().when(Every(steps=1)), workdir=tmp_path).fit(noise(20, bad=[4]), epochs=3)
    assert newest_good(tmp_path).manifest.step == 4


@pytest.mark.thin(12)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("step", range(12))
def test_the_last_checkpoint_is_from_before_the_first_bad_step(step, value, tmp_path, runner, noise):
    with pytest.raises((NonFiniteLoss, NotFinite)):
        runner(callbacks.ModelSaver().when(Every(steps=1)), workdir=tmp_path).fit(noise(12, bad=[step], value=value), epochs=2)
    found = newest_good(tmp_path)
    assert (0 if found is None else found.manifest.step) == step
    assert found is None or all(tensor.isfinite().all() for tensor in found.state["parts"]["model"].values())


def test_an_epoch_without_a_finite_loss_ends_the_run(runner, noise):
    with pytest.raises(NonFiniteLoss, match=r"^all losses in epoch 1 are NaN or infinite\."):
        runner(log_every=50).fit(noise(5, bad=[0]), epochs=3)


def test_on_nonfinite_warn_continues_with_one_warning(caplog, runner, noise):
    with caplog.at_level(logging.WARNING, logger="hookpoint"):
        assert runner(on_nonfinite="warn").fit(noise(5, bad=[0]), epochs=3).step == 15
    (record,) = caplog.records
    assert record.message == (
        "all losses at log steps 2 and 4 are NaN or infinite, in epoch 1: the mean at step 4 is nan; training continues"
    )


def test_occasional_infinite_losses_do_not_end_the_run(runner, noise):
    class Overflows(nn.MSELoss):
        def forward(self, outputs, targets):
            loss = super().forward(outputs, targets)
            return loss + math.inf if next(counted) % 3 else loss

    counted = iter(range(99))
    assert runner(criterion=Overflows(), log_every=3).fit(noise(12), epochs=2).step == 24


def test_terminate_on_nan_stops_the_run(runner, noise):
    assert runner(callbacks.TerminateOnNaN(), log_every=1).fit(noise(1, bad=[0]), epochs=3).step == 1


def test_loss_monitor_raises_even_with_on_nonfinite_warn(runner, noise):
    with pytest.raises(NonFiniteLoss, match=r"^the loss is nan at step 1, in epoch 1\."):
        runner(callbacks.LossMonitor(0), on_nonfinite="warn").fit(noise(1, bad=[0]), epochs=1)


def test_an_invalid_on_nonfinite_raises(runner):
    with pytest.raises(BadLoop, match=r"^on_nonfinite must be 'raise' or 'warn', got 'ignore'\.$"):
        runner(on_nonfinite="ignore")
