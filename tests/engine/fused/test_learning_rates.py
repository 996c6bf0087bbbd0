from __future__ import annotations

import torch
from torch import nn

from hookpoint.engine.fused._learning_rates import LearningRates

CPU = torch.device("cpu")


def weights():
    return [nn.Parameter(torch.zeros(2))]


def test_a_fused_optimizer_gets_tensor_rates_only_during_capture():
    optimizer = torch.optim.SGD([{"params": weights(), "lr": 0.1}, {"params": weights(), "lr": 0.2}], fused=True)
    rates = LearningRates(optimizer, CPU)
    with rates.as_tensors():
        tensors = [group["lr"] for group in optimizer.param_groups]
        assert [tensor.item() for tensor in tensors] == [torch.tensor(0.1).item(), torch.tensor(0.2).item()]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    optimizer.param_groups[1]["lr"] = 0.5
    rates.update()
    assert tensors[1].item() == 0.5
    with rates.as_tensors():
        assert [group["lr"] for group in optimizer.param_groups] == tensors  # the next graph reads the same ones


def test_the_rate_of_an_unfused_optimizer_is_a_setting():
    fused = LearningRates(torch.optim.SGD(weights(), lr=0.1, fused=True), CPU)
    optimizer = torch.optim.RMSprop(weights(), lr=0.1, capturable=True)
    other = LearningRates(optimizer, CPU)
    assert fused.settings().rates == []
    assert other.settings().rates == [0.1]
    with other.as_tensors():
        assert optimizer.param_groups[0]["lr"] == 0.1
    before = other.settings()
    optimizer.param_groups[0]["lr"] = 0.2
    assert other.settings() != before
    assert other.settings().others == before.others


def test_changed_settings_and_new_groups_are_detected():
    optimizer = torch.optim.SGD(weights(), lr=0.1, fused=True)
    rates = LearningRates(optimizer, CPU)
    before = rates.settings()
    optimizer.param_groups[0]["lr"] = 0.2
    assert rates.settings() == before
    optimizer.param_groups[0]["weight_decay"] = 0.1
    changed = rates.settings()
    assert changed.others != before.others
    optimizer.add_param_group({"params": weights()})
    assert rates.settings().others != changed.others


def test_rates_of_float64_weights_and_other_optimizers_stay_numbers():
    double = [nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    assert LearningRates(torch.optim.SGD(double, lr=0.1, fused=True), CPU).settings().rates == [0.1]
    assert LearningRates(torch.optim.Adagrad(weights(), lr=0.1, fused=True), CPU).settings().rates == [0.1]
