from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from hookpoint import Every, Hooks, Runner, on
from hookpoint.callbacks import CheckNumerics
from hookpoint.core.errors import BadLoop, NotFinite, NoTrigger
from hookpoint.core.loop.loop import Loop


def net():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))


def spoil(model, step, bad=math.nan):
    @on("on_train_iter_end")
    def spoils(run):
        if run.step == step:
            with torch.no_grad():
                model[1].weight[0, 0] = bad

    return spoils


def train_checked(callback, model=None, *, epochs=3, batches=2, others=(), body=lambda run: None, **given):
    """Run epochs of steps. Return the last step before the callback ended the run, and the lines of its error."""
    run = None
    try:
        with Loop([*others, callback], model=model, **given) as run:
            for _ in run.epochs(epochs):
                for _ in run.batches(range(batches)):
                    body(run)
    except NotFinite as error:
        return (0 if run is None else run.step), str(error).splitlines()
    return run.step, []


def test_finite_parameters_pass():
    assert train_checked(CheckNumerics(run_step=True), net()) == (6, [])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_parameters_are_checked_at_the_end_of_epochs(bad):
    model = net()
    step, said = train_checked(CheckNumerics(), model, others=[spoil(model, 3, bad)])
    assert step == 4
    assert said[:2] == ["CheckNumerics: NaN or infinity in the parameters at step 4.", "  now       in 1.weight"]


def test_parameters_are_checked_before_training():
    model = net()
    with torch.no_grad():
        model[0].bias[1] = math.inf
    assert train_checked(CheckNumerics(), model)[0] == 0


def test_lazy_parameters_are_checked_once_they_have_values():
    model = torch.nn.LazyLinear(1)

    @on("on_train_iter_end")
    def call(run):
        if run.step == 2:
            model(torch.ones(1, 2))
            model.weight.data.fill_(math.nan)

    step, said = train_checked(CheckNumerics(run_step=True), model, others=[call])
    assert step == 2
    assert said[1] == "  now       in weight"


def test_run_step_checks_parameters_at_every_step():
    model = net()
    step, said = train_checked(CheckNumerics(run_as_trigger=False, run_step=True), model, batches=9, others=[spoil(model, 4)])
    assert step == 4
    assert "in the parameters at step 4." in said[0]


def test_a_schedule_decides_when_to_check():
    model = net()
    assert train_checked(CheckNumerics().when(Every(steps=4)), model, batches=9, others=[spoil(model, 1)])[0] == 4


@pytest.mark.parametrize(
    "given", [{"parameters": False, "loss": True}, {"run_as_trigger": False, "run_step": True}], ids=["loss", "steps"]
)
def test_a_schedule_without_a_trigger_raises(given):
    with pytest.raises(NoTrigger):
        Hooks([CheckNumerics(**given).when(Every(epochs=5))])


def test_without_run_as_trigger_parameters_are_not_checked():
    model = net()
    step, _ = train_checked(
        CheckNumerics(run_as_trigger=False, tensors={"one": lambda run: 1.0}), model, others=[spoil(model, 1)]
    )
    assert step == 6


def test_the_loss_is_checked():
    def body(run):
        run.loss = torch.tensor(math.nan if run.current_iteration == 3 else 1.0)

    step, said = train_checked(CheckNumerics(parameters=False, loss=True), body=body)
    assert step == 3
    assert said[0] == "CheckNumerics: NaN or infinity in loss at step 3."


def test_a_logged_loss_is_checked():
    step, _ = train_checked(CheckNumerics(parameters=False, loss=True), body=lambda run: run.log(loss=math.inf))
    assert step == 1


@pytest.mark.parametrize(
    "bad", [torch.tensor([1.0, math.nan]), (1.0, [torch.tensor(math.inf)]), {"a": torch.ones(2), "b": torch.tensor(math.nan)}]
)
def test_named_tensors_are_checked(bad):
    def body(run):
        run.outputs = bad if run.current_iteration == 2 else torch.ones(3)

    step, said = train_checked(CheckNumerics(parameters=False, tensors={"logits": lambda run: run.outputs}), body=body)
    assert step == 2
    assert "in logits at step 2." in said[0]


def test_a_late_value_is_reported_with_its_own_step():
    class Distant:
        def __init__(self, value):
            self.value = value

        def __abs__(self):
            return self

        def __float__(self):
            return self.value

    callback = CheckNumerics(parameters=False, tensors={"x": lambda run: 0.0})
    callback.on_train_iter_end = lambda run: callback._magnitudes.add(
        ("x", run.step), Distant(math.nan if run.step == 2 else 1.0)
    )
    step, said = train_checked(callback, batches=5)
    assert step == 5
    assert said[0] == "CheckNumerics: NaN or infinity in x at step 2, seen at step 5."


def test_gradients_are_checked():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def body(run):
        optimizer.zero_grad()
        factor = math.inf if run.current_iteration == 3 else 1.0
        (model(torch.ones(1, 2)).sum() * factor).backward()
        optimizer.step()

    step, said = train_checked(CheckNumerics(run_as_trigger=False, gradients=True), model, optimizer=optimizer, body=body)
    assert step == 3
    assert said[0] == "CheckNumerics: NaN or infinity in the gradients at step 3."
    assert said[1].startswith("  now       in 0.weight, 0.bias, 1.weight and 1 more")


def test_gradients_in_a_runner_are_checked():
    model, data = net(), torch.ones(8, 2)
    data[5] = math.nan
    options = {"callbacks": [CheckNumerics(gradients=True)], "monitors": [], "extra_callbacks": []}
    runner = Runner(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss(), **options)
    with pytest.raises(NotFinite, match="in the gradients at step 3"):
        runner.fit([(part, part[:, :1]) for part in data.split(2)], epochs=1)


def test_a_second_run_starts_from_scratch():
    callback = CheckNumerics(run_step=True)
    model = net()
    assert train_checked(callback, model, others=[spoil(model, 2)])[0] == 2
    assert train_checked(callback, net()) == (6, [])


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match="has nothing to check"):
        CheckNumerics(run_as_trigger=False)
    with pytest.raises(ValueError, match="has nothing to check"):
        CheckNumerics(parameters=False)
    with pytest.raises(TypeError, match="must be a function"):
        CheckNumerics(tensors={"logits": "outputs"})
    with pytest.raises(BadLoop, match="CheckNumerics found no parameters"):
        train_checked(CheckNumerics(), object())
    with pytest.raises(BadLoop, match="needs an optimizer"):
        train_checked(CheckNumerics(gradients=True), net())


def test_tensors_in_any_object_are_checked():
    @dataclass
    class Output:
        logits: Any
        cache: Any = None

    def body(run):
        bad = math.nan if run.iteration == 3 else 1.0
        run.outputs = Output(torch.full((2,), bad), cache=object())

    check = CheckNumerics(parameters=False, tensors={"outputs": lambda run: run.outputs})
    _, error = train_checked(check, net(), body=body)
    assert "NaN or infinity in outputs" in str(error)


@pytest.mark.parametrize("given", [dict, lambda pairs: list(pairs.values())], ids=["dict", "list"])
def test_gradients_of_each_optimizer_are_checked(given):
    models = {"a": torch.nn.Linear(2, 1), "b": torch.nn.Linear(2, 1)}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}

    def body(run):
        for name, model in models.items():
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            scale = math.nan if run.iteration == 1 and name == "b" else 1.0
            (scale * model(torch.ones(1, 2)).sum()).backward()
            optimizers[name].step()

    checks = CheckNumerics(parameters=False, gradients=True)
    step, said = train_checked(checks, given(models), optimizer=given(optimizers), body=body)
    assert (step, said[0]) == (2, "CheckNumerics: NaN or infinity in the gradients at step 2.")
    assert not any(optimizer._optimizer_step_pre_hooks for optimizer in optimizers.values())


def test_an_optimizer_without_step_hooks_raises():
    class Own:
        def step(self): ...

    with pytest.raises(BadLoop, match=r"CheckNumerics cannot check gradients: Own has no step hooks."):
        train_checked(CheckNumerics(gradients=True), net(), optimizer=Own())
