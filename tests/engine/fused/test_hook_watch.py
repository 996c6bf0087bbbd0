from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint.engine.fused._hook_watch import HookWatch


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1)))


REGISTER = {
    "module '1.0'": lambda model, optimizer: model[1][0].register_forward_hook(print),
    "module '0'": lambda model, optimizer: model[0].register_full_backward_pre_hook(print),
    "parameter '0.weight'": lambda model, optimizer: model[0].weight.register_post_accumulate_grad_hook(print),
    "parameter '0.bias'": lambda model, optimizer: model[0].bias.register_hook(print),
    "the optimizer": lambda model, optimizer: optimizer.register_step_pre_hook(print),
    "every module (a global hook)": lambda model, optimizer: nn.modules.module.register_module_forward_hook(print),
}


@pytest.mark.parametrize("owner", REGISTER)
def test_a_hook_is_detected_while_it_exists(model, owner):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = HookWatch([model], optimizer)
    assert not watch.is_hooked()
    handle = REGISTER[owner](model, optimizer)
    try:
        assert watch.is_hooked()
        assert watch.owner == owner
    finally:
        handle.remove()
    assert not watch.is_hooked()
    assert watch.owner is None


def test_a_hook_that_exists_from_the_start_is_detected(model):
    model[0].register_forward_hook(print)
    assert HookWatch([model]).is_hooked()


def test_hooks_that_compute_a_weight_are_ignored(model):
    nn.utils.spectral_norm(model[0])
    assert not HookWatch([model]).is_hooked()


def test_state_dict_hooks_are_ignored(model):
    watch = HookWatch([model], torch.optim.SGD(model.parameters(), lr=0.1))
    model.register_load_state_dict_post_hook(print)
    assert not watch.is_hooked()
