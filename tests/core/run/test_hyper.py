from __future__ import annotations

import numpy as np
import pytest
import torch

from hookpoint import ObjAttrParam
from hookpoint.core.errors import BadValue, NotAssignable, UnknownSetting
from hookpoint.core.loop.loop import Loop
from hookpoint.core.run.hyper import Hyper


class Optimizer:
    def __init__(self, *groups):
        self.param_groups = list(groups)


class Scalar:
    """A learning rate as a tensor, which compiled steps need: it is changed in place."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value

    def fill_(self, value):
        self.value = value


class Model:
    dropout = 0.5
    frozen = False
    name = "net"


@pytest.fixture
def optimizer():
    return Optimizer({"lr": 0.1, "momentum": 0.9, "nesterov": False}, {"lr": 0.01, "weight_decay": 0.0, "betas": (0.9, 0.99)})


@pytest.fixture
def hyper(optimizer):
    with Loop(optimizer=optimizer) as run:
        yield run.hyper


@pytest.mark.parametrize("name", ["learning_rate", "lr"])
def test_setting_the_learning_rate_keeps_the_ratios_of_all_groups(hyper, optimizer, name):
    assert hyper[name] == 0.1
    hyper[name] = 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5 * (0.01 / 0.1)]


def test_a_requested_learning_rate_is_read_under_either_name(hyper):
    requests = []
    hyper.request = lambda name, value: requests.append((name, value))
    hyper["lr"] = 0.5
    assert (hyper["lr"], hyper["learning_rate"]) == (0.5, 0.5)
    hyper["learning_rate"] = 0.25
    assert (hyper["lr"], hyper["learning_rate"]) == (0.25, 0.25)
    assert requests == [("lr", 0.5), ("learning_rate", 0.25)]
    hyper.apply_agreed({"lr": 0.125})
    assert (hyper["lr"], hyper["learning_rate"]) == (0.125, 0.125)


@pytest.mark.parametrize(("name", "value", "groups"), [("lr@1", 0.5, [0.1, 0.5]), ("learning_rate@0", 0.5, [0.5, 0.01])])
def test_a_single_group_is_set_by_its_number(hyper, optimizer, name, value, groups):
    hyper[name] = value
    assert hyper[name] == value
    assert [group["lr"] for group in optimizer.param_groups] == groups


def test_a_setting_is_changed_only_in_the_groups_that_have_it(hyper, optimizer):
    hyper["momentum"] = 0.5
    hyper["weight_decay"] = 1
    assert "momentum" not in optimizer.param_groups[1]
    assert (optimizer.param_groups[0]["momentum"], optimizer.param_groups[1]["weight_decay"]) == (0.5, 1)


def test_several_optimizers_are_set_together_or_by_name():
    optimizers = {"artist": Optimizer({"lr": 0.1}, {"lr": 0.2}), "critic": Optimizer({"lr": 0.3})}
    hyper = Hyper(optimizers)

    def rates():
        return [group["lr"] for one in optimizers.values() for group in one.param_groups]

    assert (hyper["lr"], hyper["lr@critic"], hyper["learning_rate@1"]) == (0.1, 0.3, 0.2)
    hyper["learning_rate@critic"] = 0.5
    assert rates() == [0.1, 0.2, 0.5]
    hyper["lr"] = 0.2
    assert rates() == [0.2, 0.4, 1.0]
    with pytest.raises(UnknownSetting):
        hyper["lr@nobody"]


def test_a_setting_of_several_values_is_set_as_a_tuple(hyper):
    hyper["betas"] = [0.8, 0.9]
    assert hyper["betas"] == (0.8, 0.9)


def test_a_tensor_learning_rate_is_changed_in_place():
    rate = Scalar(0.1)
    with Loop(optimizer=Optimizer({"lr": rate})) as run:
        run.hyper["lr"] = 0.5
        assert (run.hyper["lr"], type(run.hyper["lr"])) == (0.5, float)
        assert rate.value == 0.5
        with pytest.raises(BadValue, match="lr must be a finite number"):
            run.hyper["lr"] = float("nan")
    assert rate.value == 0.5


def test_a_tensor_learning_rate_is_read_as_a_float_and_set_from_a_tensor():
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weights[0]], "lr": torch.tensor(1.0)}, {"params": [weights[1]], "lr": torch.tensor(0.5)}]
    optimizer = torch.optim.Adam(groups)
    with Loop(optimizer=optimizer) as run:
        before = run.hyper["lr"]
        run.hyper["lr"] *= 0.5
        assert [group["lr"].item() for group in optimizer.param_groups] == [0.5, 0.25]
        run.hyper["lr"] = torch.tensor(0.25)
        assert (before, run.hyper["lr"], list(run.hyper)) == (1.0, 0.25, ["lr", "betas", "eps", "weight_decay"])
        with pytest.raises(BadValue, match="lr must be a finite number"):
            run.hyper["lr"] = torch.ones(2)


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor([[0.5]])])
def test_an_array_with_one_element_is_set_as_a_number(hyper, optimizer, value):
    hyper["lr"] = value
    assert (optimizer.param_groups[0]["lr"], type(optimizer.param_groups[0]["lr"])) == (0.5, float)


def test_an_integer_of_numpy_stays_an_integer(hyper):
    model = Model()
    model.dropout = 3
    hyper.register(ObjAttrParam(model, "dropout"))
    hyper["dropout"] = np.int64(4)
    assert (model.dropout, type(model.dropout)) == (4, int)


@pytest.mark.parametrize("value", [np.array([0.5, 0.25]), torch.tensor(1j), torch.tensor(True)])
def test_an_array_that_is_not_one_real_number_is_refused(hyper, value):
    with pytest.raises(BadValue, match="lr must be a finite number"):
        hyper["lr"] = value


@pytest.mark.parametrize("name", ["nesterov", "nesterov@0", "params"])
def test_entries_of_a_group_that_are_not_numbers_are_not_settings(hyper, optimizer, name):
    optimizer.param_groups[0]["params"] = []
    for use in (lambda: hyper[name], lambda: hyper.__setitem__(name, True)):
        with pytest.raises(UnknownSetting, match=f"there is no setting '{name}'"):
            use()
    assert optimizer.param_groups[0]["nesterov"] is False


def test_the_settings_can_be_listed(hyper):
    assert list(hyper) == ["lr", "momentum", "weight_decay", "betas"]
    assert len(hyper) == 4
    assert "lr" in hyper
    assert "dropout" not in hyper


def test_a_registered_setting_takes_precedence_over_the_optimizer(hyper, optimizer):
    model = Model()
    hyper.register(ObjAttrParam(model, "dropout"))
    hyper.register(ObjAttrParam(model, "dropout", name="lr"))
    hyper["dropout"] = 0.25
    assert model.dropout == hyper["lr"] == 0.25
    hyper["lr"] = 0.125
    assert model.dropout == 0.125
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert list(hyper) == ["dropout", "lr", "momentum", "weight_decay", "betas"]
    del hyper["lr"]
    assert hyper["lr"] == 0.1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lr", float("nan"), "lr must be a finite number, got nan.\n  now       0.1"),
        ("lr", float("inf"), "lr must be a finite number, got inf.\n  now       0.1"),
        ("lr", "0.1", "lr must be a finite number, got '0.1'.\n  now       0.1"),
        ("lr", True, "lr must be a finite number, got True.\n  now       0.1"),
        ("lr", None, "lr must be a finite number, got None.\n  now       0.1"),
        ("lr", -0.1, "lr must be >= 0, got -0.1.\n  now       0.1"),
        ("learning_rate", -0.1, "learning_rate must be >= 0, got -0.1.\n  now       0.1"),
        ("lr@0", -0.1, "lr@0 must be >= 0, got -0.1.\n  now       0.1"),
        ("weight_decay", -1, "weight_decay must be >= 0, got -1.\n  now       0.0"),
        ("betas", 0.5, "betas must be 2 values, got 0.5.\n  now       (0.9, 0.99)"),
        ("betas", (0.5,), "betas must be 2 values, got (0.5,).\n  now       (0.9, 0.99)"),
        ("betas", (0.5, "x"), "betas must be a finite number, got 'x'.\n  now       0.99"),
    ],
)
def test_an_invalid_value_raises_and_changes_nothing(hyper, optimizer, name, value, message):
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(BadValue) as caught:
        hyper[name] = value
    assert str(caught.value) == message
    assert optimizer.param_groups == before


def test_an_attribute_keeps_its_type():
    model = Model()
    ObjAttrParam(model, "name").set_value("other")
    ObjAttrParam(model, "frozen").set_value(True)
    assert (model.name, model.frozen) == ("other", True)
    with pytest.raises(BadValue, match=r"name must be a str, got 3\.\n  now       'other'"):
        ObjAttrParam(model, "name").set_value(3)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("learning_rte", "betas, learning_rate, lr, momentum, weight_decay"),
        ("learning_rte@0", "betas, learning_rate, lr, momentum, weight_decay"),
        ("lr@2", "lr, lr@0, lr@1"),
        ("learning_rate@x", "lr, lr@0, lr@1"),
        ("betas@0", "betas, betas@1"),
    ],
)
def test_an_unknown_setting_raises_with_the_known_names(hyper, name, known):
    for use in (lambda: hyper[name], lambda: hyper.__setitem__(name, 1)):
        with pytest.raises(UnknownSetting) as caught:
            use()
        assert str(caught.value) == (
            f"there is no setting '{name}'.\n"
            f"  known     {known}\n"
            f'  register  run.hyper.register(ObjAttrParam(obj, "attribute", name="{name}"))'
        )
        assert isinstance(caught.value, KeyError)


def test_without_an_optimizer_there_are_no_settings():
    with Loop() as run:
        assert list(run.hyper) == []
        with pytest.raises(UnknownSetting, match=r"there is no setting 'lr'.\n  known     none"):
            run.hyper["lr"] = 1


def test_only_registered_settings_can_be_deleted(hyper):
    with pytest.raises(UnknownSetting):
        del hyper["lr"]


def test_a_missing_attribute_cannot_be_a_setting():
    with pytest.raises(UnknownSetting, match=r"there is no setting 'drop_out'.\n  known     dropout, frozen, name"):
        ObjAttrParam(Model(), "drop_out")


@pytest.mark.parametrize("value", [1e300, -3.5e38, 10**39])
def test_a_number_too_large_for_float32_raises(value):
    class Optimizer:
        param_groups = [{"eps": 0.1}]  # noqa: RUF012

    hyper = Hyper(Optimizer())
    with pytest.raises(BadValue, match=r"^eps must be a float32 number, at most 3\.40282e\+38, got "):
        hyper["eps"] = value
    assert hyper["eps"] == 0.1


@pytest.mark.parametrize("name", ["lr", "momentum", "dropout"])
def test_a_setting_cannot_be_assigned_as_an_attribute(hyper, name):
    with pytest.raises(NotAssignable) as caught:
        setattr(hyper, name, 0.5)
    assert str(caught.value) == f'run.hyper.{name} cannot be assigned.\n  write     run.hyper["{name}"] = 0.5'
