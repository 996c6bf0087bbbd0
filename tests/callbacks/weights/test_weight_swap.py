from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint.callbacks.weights._weight_swap import WeightSwap
from hookpoint.core.errors import BadLoop


def test_values_go_in_and_the_tensors_own_come_back_as_the_same_objects():
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


def test_values_of_another_type_and_integers_are_cast():
    tensors = [torch.zeros(2, dtype=torch.bfloat16), torch.tensor(5)]
    swap = WeightSwap()
    swap.apply(tensors, [torch.full((2,), 0.5), torch.tensor(9)])
    assert tensors[0].tolist() == [0.5, 0.5]
    assert tensors[1].item() == 9
    swap.restore()
    assert tensors[0].tolist() == [0.0, 0.0]
    assert tensors[1].item() == 5


def test_nothing_to_put_in_is_nothing_to_put_back():
    swap = WeightSwap()
    swap.apply([], [])
    assert not swap.is_active
    swap.restore()


def test_a_second_one_is_refused():
    swap = WeightSwap()
    swap.apply([torch.zeros(1)], [torch.ones(1)])
    with pytest.raises(BadLoop, match="already"):
        swap.apply([torch.zeros(1)], [torch.ones(1)])


def test_a_gradient_that_is_under_way_is_that_of_the_weights_that_are_back():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    loss = (weight**2).sum()
    swap = WeightSwap()
    swap.apply([weight], [torch.zeros(2)])
    swap.restore()
    loss.backward()
    assert weight.grad.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("how", ["foreach", "for-loop"])
def test_a_step_on_the_values_is_an_error_and_what_was_there_is_back(how):
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


def test_statistics_that_were_written_to_are_put_back_without_a_word():
    norm = nn.BatchNorm1d(2)
    swap = WeightSwap()
    swap.apply([norm.running_mean], [torch.ones(2)])
    norm(torch.randn(4, 2))
    swap.restore()
    assert norm.running_mean.tolist() == [0.0, 0.0]


def test_in_inference_mode_too():
    weight = nn.Parameter(torch.tensor([2.0]))
    swap = WeightSwap()
    with torch.inference_mode():
        swap.apply([weight], [torch.ones(1)])
        assert weight.item() == 1.0
    swap.restore()
    assert weight.item() == 2.0
    (weight**2).sum().backward()
    assert weight.grad.item() == 4.0


def test_an_interrupt_while_it_goes_in_leaves_nothing_half_done(monkeypatch):
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
