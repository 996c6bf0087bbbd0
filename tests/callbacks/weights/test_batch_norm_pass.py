from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import hookpoint
from hookpoint import Loop, Runner
from hookpoint.callbacks.weights._batch_norm_pass import batch_norm_buffers, measured_statistics

DATA = [(torch.randn(4, 3, generator=torch.Generator().manual_seed(at)), torch.zeros(4, 2)) for at in range(5)]


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    model[3].eval()
    return model


def in_a_loop(model, data=DATA, forward=None):
    with Loop([], model=model, extra_callbacks=[], monitors=[]) as run:
        found = measured_statistics(run, model, data, forward)
        assert not run.metrics
    return found


def same(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_statistics_match_update_bn_and_the_model_is_not_changed():
    model = make()
    theirs, before = copy.deepcopy(model), copy.deepcopy(model)
    update_bn(DATA, theirs)
    assert same(in_a_loop(model), batch_norm_buffers(theirs))
    assert same(model.state_dict(), before.state_dict())
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    assert [module.momentum for module in model if hasattr(module, "momentum")] == [0.1, 0.1]


def test_a_runner_uses_its_validation_forward():
    model, found = make(), {}
    theirs = copy.deepcopy(model)
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.0), nn.MSELoss(), extra_callbacks=[], monitors=[])

    @runner.on("on_run_begin")
    def measure(run):
        found.update(measured_statistics(run, model, DATA, None))

    runner.fit(DATA, epochs=1)
    update_bn(DATA, theirs)
    assert same(found, batch_norm_buffers(theirs))


def test_a_custom_forward_is_used():
    model = make()
    theirs = copy.deepcopy(model)
    update_bn(DATA, theirs)
    batches = [{"x": inputs} for inputs, _ in DATA]
    assert same(in_a_loop(model, iter(batches), lambda batch: model(batch["x"])), batch_norm_buffers(theirs))


def test_without_batches_nothing_is_measured_or_changed():
    model = make()
    before = copy.deepcopy(model)
    assert in_a_loop(model, []) == {}
    assert same(model.state_dict(), before.state_dict())


def test_random_numbers_and_logged_values_are_not_affected():
    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5)

        def forward(self, inputs):
            hookpoint.log("mean", inputs.mean())
            return self.drop(self.norm(inputs))

    loader = DataLoader(TensorDataset(torch.randn(8, 3), torch.zeros(8, 3)), batch_size=4, shuffle=True)
    model, numbers = Logs(), torch.get_rng_state()
    assert in_a_loop(model, loader)
    assert torch.equal(torch.get_rng_state(), numbers)


def test_the_model_is_restored_after_an_exception():
    model = make()
    before = copy.deepcopy(model)

    def fails(batch):
        model(batch[0])
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        in_a_loop(model, forward=fails)
    assert same(model.state_dict(), before.state_dict())
    assert model[1].momentum == 0.1
    assert not model[3].training


def test_a_model_without_batch_norm_has_no_buffers():
    assert batch_norm_buffers(nn.Sequential(nn.Linear(1, 1), nn.LayerNorm(1))) == {}
    assert list(batch_norm_buffers({"a": nn.BatchNorm1d(1)})) == ["a.running_mean", "a.running_var", "a.num_batches_tracked"]
