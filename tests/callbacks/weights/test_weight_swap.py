from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint.callbacks.weights._weight_swap import WeightSwap
from hookpoint.core.errors import BadLoop


def test_restore_returns_the_original_values_to_the_same_tensors():
    model = nn.Linear(3, 2)
    own, places = [one.detach().clone() for one in model.parameters()], [one.data_ptr() for one in model.parameters()]
    values = [torch.full_like(one, 7.0) for one in own]
    swap = WeightSwap()
    assert not swap.is_active
    swap.apply(list(model.parameters()), values)
    assert swap.is_active
    assert all(torch.equal(one, value) for one, value in zip(model.parameters(), values, strict=True))
    swap.restore()
    swap.restore()
    assert not swap.is_active
    assert all(torch.equal(one, value) for one, value in zip(model.parameters(), own, strict=True))
    assert [one.data_ptr() for one in model.parameters()] == places
    assert all(torch.equal(value, torch.full_like(value, 7.0)) for value in values)


def test_values_of_other_dtypes_are_cast():
    tensors = [torch.zeros(2, dtype=torch.bfloat16), torch.tensor(5)]
    swap = WeightSwap()
    swap.apply(tensors, [torch.full((2,), 0.5), torch.tensor(9)])
    assert tensors[0].tolist() == [0.5, 0.5]
    assert tensors[1].item() == 9
    swap.restore()
    assert tensors[0].tolist() == [0.0, 0.0]
    assert tensors[1].item() == 5


def test_applying_no_values_has_no_effect():
    swap = WeightSwap()
    swap.apply([], [])
    assert not swap.is_active
    swap.restore()


def test_applying_twice_raises():
    swap = WeightSwap()
    swap.apply([torch.zeros(1)], [torch.ones(1)])
    with pytest.raises(BadLoop, match="already"):
        swap.apply([torch.zeros(1)], [torch.ones(1)])


def test_a_pending_gradient_is_that_of_the_restored_weights():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    loss = (weight**2).sum()
    swap = WeightSwap()
    swap.apply([weight], [torch.zeros(2)])
    swap.restore()
    loss.backward()
    assert weight.grad.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("how", ["foreach", "for-loop"])
def test_a_step_on_the_swapped_values_raises_and_restores_the_weights(how):
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    optimizer = torch.optim.Adam([weight], lr=1.0, foreach=how == "foreach")
    swap = WeightSwap()
    swap.apply([weight], [torch.zeros(2)])
    (weight**2).sum().backward()
    optimizer.step()
    with pytest.raises(BadLoop, match="the weights were changed during a validation or prediction pass") as raised:
        swap.restore()
    assert "the change is lost" in str(raised.value)
    assert weight.tolist() == [2.0, 3.0]
    assert not swap.is_active


def test_changed_statistics_are_restored_without_an_error():
    norm = nn.BatchNorm1d(2)
    swap = WeightSwap()
    swap.apply([norm.running_mean], [torch.ones(2)])
    norm(torch.randn(4, 2))
    swap.restore()
    assert norm.running_mean.tolist() == [0.0, 0.0]


def test_weights_can_be_swapped_in_inference_mode():
    weight = nn.Parameter(torch.tensor([2.0]))
    swap = WeightSwap()
    with torch.inference_mode():
        swap.apply([weight], [torch.ones(1)])
        assert weight.item() == 1.0
    swap.restore()
    assert weight.item() == 2.0
    (weight**2).sum().backward()
    assert weight.grad.item() == 4.0


def test_an_interrupt_while_applying_can_be_undone(monkeypatch):
    tensors = [torch.tensor([1.0]), torch.tensor([2.0])]

    def interrupted(into, values):
        into[0].copy_(values[0])
        raise KeyboardInterrupt

    swap, real = WeightSwap(), torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", interrupted)
    with pytest.raises(KeyboardInterrupt):
        swap.apply(tensors, [torch.tensor([9.0])] * 2)
    with pytest.raises(KeyboardInterrupt):
        swap.restore()
    monkeypatch.setattr(torch, "_foreach_copy_", real)
    swap.restore()
    assert [one.item() for one in tensors] == [1.0, 2.0]
