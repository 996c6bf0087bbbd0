from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hookpoint import Callback, Every, LambdaCallback, Runner, callbacks
from hookpoint.core.errors import NotFinite
from hookpoint.storage.workdir.find_checkpoint import newest_good


class Masked(nn.Module):
    """A layer with a mask of -inf, which may be created in the first forward."""

    def __init__(self, *, late=False):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.late = late
        if not late:
            self.make_mask()

    def make_mask(self):
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

    def forward(self, inputs):
        if not hasattr(self, "mask"):
            self.make_mask()
        return (self.layer(inputs).unsqueeze(1) + self.mask).softmax(-1).sum(1)[:, :1]


class SkipBadSteps(Callback):
    """Skip the step after a non-finite loss, as the fp16 scaler does."""

    def on_backward_begin(self, run):
        if not math.isfinite(run.loss.item()):
            run.skip_backward()


def normed():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))


def fit(workdir, model, data, *more, epochs=1, optimizer=None, loss=nn.functional.mse_loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if optimizer is None else optimizer
    saver = callbacks.ModelSaver().when(Every(steps=1))
    runner = Runner(
        model, optimizer, loss, callbacks=[*more, saver], workdir=workdir, extra_callbacks=[], monitors=[], log_every=0
    )
    return runner.fit(data, epochs=epochs)


def test_batch_norm_with_nan_statistics_is_not_saved(tmp_path, caplog, noise):
    model = normed()
    with pytest.raises(NotFinite, match=r"^0\.running_mean, 0\.running_var of the model contain NaN or infinity\."):
        fit(tmp_path, model, noise(bad=[3], value=math.inf), SkipBadSteps())
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert newest_good(tmp_path).manifest.step == 3
    assert "was not saved: 0.running_mean" in caplog.text


def test_a_mask_of_infinities_is_saved(tmp_path, noise):
    fit(tmp_path, Masked(), noise())
    assert newest_good(tmp_path).manifest.step == 5
    fit(tmp_path, Masked(), noise(), epochs=2)
    assert newest_good(tmp_path).manifest.step == 10


def test_a_mask_that_is_a_frozen_parameter_is_saved(tmp_path, noise):
    model = nn.Linear(4, 1)
    model.mask = nn.Parameter(torch.full((4, 4), -math.inf).triu(1), requires_grad=False)
    model.offset = nn.Parameter(torch.zeros(1), requires_grad=False)
    fit(tmp_path, model, noise())
    assert newest_good(tmp_path).manifest.step == 5
    spoil = LambdaCallback(on_train_iter_end=lambda run: run.step == 7 and model.offset.fill_(math.nan))
    with pytest.raises(NotFinite, match=r"^offset of the model contains"):
        fit(tmp_path, model, noise(), spoil, epochs=2)


def test_a_mask_created_in_the_forward_is_saved(tmp_path, noise):
    fit(tmp_path, Masked(late=True), noise())
    assert "mask" in newest_good(tmp_path).state["parts"]["model"]


def test_an_optimizer_with_infinity_in_its_state_is_not_saved(tmp_path, noise):
    model = nn.Linear(4, 1)
    huge = LambdaCallback(on_step_begin=lambda run: run.step == 3 and model.bias.grad.fill_(1e30))
    with pytest.raises(NotFinite, match=r"^state\.1\.exp_avg_sq of the optimizer contains NaN or infinity\."):
        fit(tmp_path, model, noise(), huge, optimizer=torch.optim.Adam(model.parameters()))
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert newest_good(tmp_path).manifest.step == 3


def test_the_parameters_of_a_criterion_are_checked(tmp_path, noise):
    class Weighted(nn.MSELoss):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

    criterion = Weighted()
    spoil = LambdaCallback(on_train_iter_end=lambda run: run.step == 4 and criterion.weight.data.fill_(math.nan))
    with pytest.raises(NotFinite, match=r"^weight of the criterion contains"):
        fit(tmp_path, nn.Linear(4, 1), noise(), spoil, loss=criterion)
    assert newest_good(tmp_path).manifest.step == 3


def test_a_resumed_run_checks_buffers_that_were_finite_at_the_start(tmp_path, noise):
    fit(tmp_path, normed(), noise())
    spoilt = normed()
    spoilt[0].running_mean.fill_(math.nan)  # as after a run that has failed; the checkpoint replaces it
    with pytest.raises(NotFinite, match=r"^0\.running_mean"):
        fit(tmp_path, spoilt, noise(bad=[1], value=math.inf), SkipBadSteps(), epochs=2)
    assert newest_good(tmp_path).manifest.step == 6


def test_a_checkpoint_without_a_list_of_finite_buffers_resumes(tmp_path, monkeypatch, noise):
    from hookpoint.core.loop._saving import Saving

    state = Saving.state
    with monkeypatch.context() as patched:  # as saved by earlier versions
        patched.setattr(Saving, "state", lambda saving: {k: v for k, v in state(saving).items() if k != "finite_buffers"})
        fit(tmp_path, normed(), noise())
    assert "finite_buffers" not in newest_good(tmp_path).state
    with pytest.raises(NotFinite, match=r"^0\.running_mean"):
        fit(tmp_path, normed(), noise(bad=[1], value=math.inf), SkipBadSteps(), epochs=2)
