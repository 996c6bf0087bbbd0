from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Loop
from hookpoint.core.errors import BadValue, UnknownSetting
from hookpoint.core.run.hyper import Hyper

BARE = {"extra_callbacks": [], "monitors": []}


class Groups:
    """The part of an optimizer that settings use."""

    def __init__(self, *rates, **entries):
        self.param_groups = [{"lr": rate, **entries} for rate in rates]


def rates(*optimizers):
    return [group["lr"] for one in optimizers for group in one.param_groups]


def running(optimizer, **options):
    return Loop(optimizer=optimizer, **BARE, **options)


# All groups


@pytest.mark.parametrize("name", ["learning_rate", "lr"])
def test_every_group_of_every_optimizer_keeps_its_ratio_to_the_first(name):
    actor, critic = Groups(0.5, 0.25), Groups(2.0, 0.0)
    with running({"actor": actor, "critic": critic}) as run:
        run.hyper[name] = 0.25
        assert rates(actor, critic) == [0.25, 0.125, 1.0, 0.0]
        run.hyper[name] = 0.0
        assert rates(actor, critic) == [0.0, 0.0, 0.0, 0.0]
        run.hyper[name] = 1.0
        assert rates(actor, critic) == [1.0, 0.5, 4.0, 0.0]
        assert run.hyper[name] == 1.0


def test_optimizers_can_be_in_a_list():
    first, second = Groups(0.5), Groups(0.25, 1.0)
    with running([first, second]) as run:
        run.hyper["lr"] = 1.0
        assert rates(first, second) == [1.0, 0.5, 2.0]
        run.hyper["lr@2"] = 4.0
        assert rates(first, second) == [1.0, 0.5, 4.0]


def test_setting_the_current_value_changes_no_bit():
    # 0.3 * (0.7 / 0.3) is not 0.7
    optimizer = Groups(0.3, 0.7, 0.1)
    with running(optimizer) as run:
        for name, value in [("lr", 0.3), ("lr@1", 0.7), ("lr@0", 0.3), ("lr", 0.3)]:
            run.hyper[name] = value
            assert rates(optimizer) == [0.3, 0.7, 0.1]
        optimizer.param_groups[1]["lr"] = 0.65  # by a scheduler
        run.hyper["lr"] = 0.3
        assert rates(optimizer) == [0.3, 0.65, 0.1]


def test_equal_groups_stay_equal():
    optimizer = Groups(0.1, 0.1, 0.1)
    with running(optimizer) as run:
        for value in [0.3, 1e-7, 3, 0.1]:
            run.hyper["lr"] = value
            assert rates(optimizer) == [value] * 3


def test_all_groups_get_the_value_if_the_first_rate_is_zero():
    optimizer = Groups(0.0, 0.5)
    with running(optimizer) as run:
        run.hyper["lr"] = 0.25
        assert rates(optimizer) == [0.25, 0.25]


def test_other_settings_are_set_as_given():
    actor, critic = Groups(0.5, 0.25, momentum=0.9), Groups(2.0, momentum=0.5)
    with running({"actor": actor, "critic": critic}) as run:
        run.hyper["momentum"] = 0.8
        assert [group["momentum"] for one in (actor, critic) for group in one.param_groups] == [0.8, 0.8, 0.8]
        run.hyper["momentum@critic"] = 0.1
        assert (run.hyper["momentum"], run.hyper["momentum@critic"]) == (0.8, 0.1)


def test_ratios_are_those_of_the_initial_rates_of_a_scheduler():
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:], "lr": 1.0}])
    torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda epoch: 0.125, lambda epoch: 1.0])
    assert rates(optimizer) == [0.0625, 1.0]
    with running(optimizer) as run:
        run.hyper["lr"] = 0.25
        assert rates(optimizer) == [0.25, 0.5]


def test_ratios_are_those_at_the_begin_of_the_run():
    optimizer = Groups(1.0, 0.5)
    loop = running(optimizer)
    optimizer.param_groups[1]["lr"] = 0.25
    with loop as run:
        optimizer.param_groups[1]["lr"] = 8.0
        run.hyper["lr"] = 2.0
        assert rates(optimizer) == [2.0, 0.5]
        run.hyper["lr@1"] = 2.0
    with loop as run:  # a fresh run
        run.hyper["lr"] = 1.0
        assert rates(optimizer) == [1.0, 1.0]


def test_an_added_group_keeps_its_ratio_at_that_time():
    optimizer = Groups(1.0)
    with running(optimizer) as run:
        run.hyper["lr"] = 0.5
        optimizer.param_groups.append({"lr": 0.125})
        run.hyper["lr"] = 0.25
        assert rates(optimizer) == [0.25, 0.0625]


# One group, one optimizer


def test_a_group_that_is_set_keeps_its_new_ratio():
    optimizer = Groups(1.0, 0.5, 0.25)
    with running(optimizer) as run:
        run.hyper["lr@1"] = 2.0
        assert rates(optimizer) == [1.0, 2.0, 0.25]
        run.hyper["lr"] = 0.5
        assert rates(optimizer) == [0.5, 1.0, 0.125]
        run.hyper["learning_rate@0"] = 0.25
        assert rates(optimizer) == [0.25, 1.0, 0.125]
        run.hyper["lr"] = 0.5
        assert rates(optimizer) == [0.5, 2.0, 0.25]


def test_an_optimizer_that_is_set_keeps_its_new_ratio_to_the_others():
    actor, critic = Groups(1.0, 0.5), Groups(2.0, 8.0)
    with running({"actor": actor, "critic": critic}) as run:
        run.hyper["lr@critic"] = 1.0
        assert rates(actor, critic) == [1.0, 0.5, 1.0, 4.0]
        assert (run.hyper["lr"], run.hyper["lr@critic"], run.hyper["lr@3"]) == (1.0, 1.0, 4.0)
        run.hyper["lr"] = 0.5
        assert rates(actor, critic) == [0.5, 0.25, 0.5, 2.0]
        run.hyper["learning_rate@actor"] = 1.0
        assert rates(actor, critic) == [1.0, 0.5, 0.5, 2.0]
        run.hyper["lr"] = 2.0
        assert rates(actor, critic) == [2.0, 1.0, 1.0, 4.0]


def test_an_optimizer_whose_first_rate_is_zero_is_set_in_all_groups():
    actor, critic = Groups(1.0), Groups(0.0, 8.0)
    with running({"actor": actor, "critic": critic}) as run:
        run.hyper["lr@critic"] = 0.5
        assert rates(actor, critic) == [1.0, 0.5, 0.5]


def test_setting_a_rate_to_zero_keeps_the_ratios():
    optimizer = Groups(1.0, 0.5)
    with running(optimizer) as run:
        run.hyper["lr@0"] = 0.0
        assert rates(optimizer) == [0.0, 0.5]
        run.hyper["lr"] = 2.0
        assert rates(optimizer) == [2.0, 1.0]


def test_groups_are_numbered_across_optimizers():
    hyper = Hyper({"actor": Groups(1.0, 0.5), "critic": Groups(2.0)})
    assert [hyper[f"lr@{number}"] for number in range(3)] == [1.0, 0.5, 2.0]


@pytest.mark.parametrize("name", ["lr@nobody", "learning_rate@3", "lr@-1"])
def test_an_unknown_group_or_optimizer_raises_with_the_known_names(name):
    hyper = Hyper({"actor": Groups(1.0, 0.5), "critic": Groups(2.0)})
    for use in (lambda: hyper[name], lambda: hyper.__setitem__(name, 1.0)):
        with pytest.raises(UnknownSetting, match="known     lr, lr@0, lr@1, lr@2, lr@actor, lr@critic"):
            use()


# Rates that are tensors or not numbers


def test_tensor_rates_are_filled_in_place():
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    kept = [torch.tensor(0.1), torch.tensor(0.3)]
    optimizer = torch.optim.Adam([{"params": [one], "lr": rate} for one, rate in zip(parameters, kept, strict=True)])
    with running(optimizer) as run:
        run.hyper["lr"] = 0.1  # its current value, up to 32 bits
        assert all(torch.equal(rate, torch.tensor(value)) for rate, value in zip(kept, [0.1, 0.3], strict=True))
        run.hyper["lr"] = 0.05
        assert all(one is other for one, other in zip(rates(optimizer), kept, strict=True))
        assert [float(rate) for rate in kept] == pytest.approx([0.05, 0.15])
        run.hyper["lr@1"] = 0.1
        run.hyper["lr"] = 0.1
        assert [float(rate) for rate in kept] == pytest.approx([0.1, 0.2])


class DeviceRate:
    """Like a 32-bit tensor on a device: counts its changes, and the reads that make the host wait."""

    is_cpu = False

    def __init__(self, value):
        self.tensor, self._version, self.waits = torch.tensor(value), 0, 0

    def __float__(self):
        self.waits += 1
        return self.tensor.item()

    def fill_(self, value):
        self.tensor.fill_(value)
        self._version += 1

    def new_full(self, size, value, device):
        assert device == "cpu"
        return self.tensor.new_full(size, value)


def test_rates_on_a_device_are_read_only_after_outside_changes():
    kept = [DeviceRate(0.1), DeviceRate(0.3)]
    optimizer = Groups(*kept)

    def waits():
        found, kept[0].waits, kept[1].waits = [one.waits for one in kept], 0, 0
        return found

    with running(optimizer) as run:
        run.hyper["lr"] = 0.1
        waits()
        for step in range(1, 5):
            run.hyper["lr"] = 0.1 / step
            run.hyper["lr@1"] = 0.2 / step
        assert waits() == [0, 0]
        assert [one.tensor.item() for one in kept] == pytest.approx([0.025, 0.05])
        kept[0].fill_(1.0)  # by a scheduler
        run.hyper["lr"] = 0.025
        assert waits() == [1, 0]
        assert [one.tensor.item() for one in kept] == pytest.approx([0.025, 0.05])


def test_groups_without_a_numeric_rate_are_unchanged():
    optimizer = Groups(None, 1.0, 0.5)
    with running(optimizer) as run:
        run.hyper["lr"] = 0.5
        assert rates(optimizer) == [None, 0.5, 0.25]


def test_a_rate_that_would_not_be_finite_raises_and_changes_nothing():
    optimizer = Groups(1e-300, 1.0)
    with running(optimizer) as run:
        with pytest.raises(BadValue, match="lr: the rate of group 1 would be inf"):
            run.hyper["lr"] = 1e10
        assert rates(optimizer) == [1e-300, 1.0]
        assert math.isfinite(run.hyper["lr@1"])


# Checkpoints


def trained(workdir, epochs, *, change=None, store=None):
    """Train and change the settings in each epoch; return the rates of each epoch."""
    weights = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    actor = torch.optim.SGD([{"params": weights[:1], "lr": 1.0}, {"params": weights[1:2], "lr": 0.3}])
    critic = torch.optim.SGD(weights[2:], lr=0.7)
    seen = []
    with running({"actor": actor, "critic": critic}, model=torch.nn.Linear(1, 1), workdir=workdir) as run:
        for epoch in run.epochs(epochs):
            for _ in run.batches([1]):
                for one in (actor, critic):
                    one.step()
            if epoch == 1:
                run.hyper["lr@critic"] = 0.1
            run.hyper["lr"] = 1 / (3 * epoch)
            seen.append(rates(actor, critic))
            run.save("epoch")
    return seen


def test_ratios_are_in_the_checkpoint(tmp_path):
    whole = trained(tmp_path / "whole", 4)
    assert trained(tmp_path / "parts", 2) + trained(tmp_path / "parts", 4) == whole
    assert whole[-1] == pytest.approx([1 / 12, 0.3 / 12, 0.1 / 12])
    assert whole[-1][2] != 0.7 / 12


def test_a_checkpoint_without_ratios_uses_those_of_its_rates():
    actor, critic = Groups(0.5, 0.25), Groups(2.0)
    hyper = Hyper({"actor": actor, "critic": critic})
    hyper.rates.begin()
    critic.param_groups[0]["lr"] = 1.0  # as the checkpoint has it
    hyper.rates.load_state_dict(None)
    hyper["lr"] = 1.0
    assert rates(actor, critic) == [1.0, 0.5, 2.0]
