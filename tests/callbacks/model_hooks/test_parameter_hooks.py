"""Functions are registered as PyTorch hooks on parameters during the run. Frozen parameters get them when unfrozen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Callback, Loop, Runner
from hookpoint.callbacks import ParameterHooks
from hookpoint.core.errors import BadLoop

QUIET = {"extra_callbacks": [], "monitors": []}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def data(number=4):
    torch.manual_seed(1)
    return [(torch.randn(5, 2), torch.randn(5, 1)) for _ in range(number)]


def make(model, *callbacks, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Runner(model, optimizer, nn.MSELoss(), callbacks=callbacks, **{**QUIET, "device": "cpu", **options})


def left(model):
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return [name for name, one in model.named_parameters() for kind in kinds if getattr(one, kind)]


class Seen:
    def __init__(self):
        self.calls = []

    def grad(self, gradient, *, name):
        self.calls.append((name, gradient.clone()))

    def after(self, parameter, *, name):
        self.calls.append((name, parameter.grad.clone()))

    @property
    def names(self):
        return [name for name, _ in self.calls]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_functions_see_the_same_values_as_plain_pytorch_hooks(accumulate):
    ours, theirs, model, other = Seen(), Seen(), net(), net()
    hooks = ParameterHooks("*.weight", grad=ours.grad, post_accumulate_grad=ours.after)
    make(model, hooks, accumulate=accumulate).fit(data(), epochs=2)
    for name in ("0.weight", "2.weight"):
        parameter = other.get_parameter(name)
        parameter.register_hook(lambda gradient, name=name: theirs.grad(gradient, name=name))
        parameter.register_post_accumulate_grad_hook(lambda one, name=name: theirs.after(one, name=name))
    make(other, accumulate=accumulate).fit(data(), epochs=2)
    assert len(ours.calls) == 2 * 2 * 8
    assert ours.names == theirs.names
    assert all(torch.equal(mine, its) for (_, mine), (_, its) in zip(ours.calls, theirs.calls, strict=True))
    assert left(model) == []


def test_a_gradient_can_be_replaced():
    model = net()
    before = model[0].weight.clone()
    make(model, ParameterHooks("0.*", grad=torch.zeros_like)).fit(data(), epochs=1)
    assert torch.equal(model[0].weight, before)


def test_a_hook_can_update_weights_in_the_backward_pass():
    """The purpose of post_accumulate_grad hooks: gradients are used and dropped as soon as they are computed."""
    model = net()

    def step(parameter):
        with torch.no_grad():
            parameter.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    with Loop([ParameterHooks("*", post_accumulate_grad=step)], model=model, **QUIET) as run:
        for inputs, targets in run.batches(data()):
            nn.functional.mse_loss(model(inputs), targets).backward()
    other = net()
    make(other).fit(data(), epochs=1)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    assert left(model) == []


def test_frozen_parameters_are_hooked_in_the_pass_after_they_are_unfrozen():
    model, seen = net(), Seen()
    model[0].requires_grad_(False)

    class Thaws(Callback):
        def on_epoch_begin(self, run):
            model[0].requires_grad_(run.epoch == 2)

    make(model, ParameterHooks("?.weight", grad=seen.grad), Thaws()).fit(data(1), epochs=3)
    assert seen.names == ["2.weight", "2.weight", "0.weight", "2.weight"]
    assert left(model) == []


def test_frozen_parameters_are_reported_if_no_other_parameter_matches(caplog):
    model, seen = net(), Seen()
    model[0].requires_grad_(False)
    make(model, ParameterHooks("0.*", grad=seen.grad)).fit(data(1), epochs=1)
    assert caplog.messages == [
        "ParameterHooks(0.*): all matching parameters are frozen; they have no hooks until they are unfrozen"
    ]
    assert seen.calls == []


def test_a_replaced_parameter_is_hooked():
    model, seen = net(), Seen()

    class Replaces(Callback):
        def on_epoch_begin(self, run):
            if run.epoch == 2:
                model[2].bias = nn.Parameter(torch.zeros(1))

    make(model, ParameterHooks("2.bias", grad=seen.grad), Replaces()).fit(data(1), epochs=2)
    assert seen.names == ["2.bias", "2.bias"]
    assert left(model) == []


def test_a_tied_parameter_is_hooked_once():
    model, seen = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)), Seen()
    model[1].weight = model[0].weight
    make(model, ParameterHooks("1.weight", grad=seen.grad)).fit(data(1), epochs=1)
    make(model, ParameterHooks("*.weight", grad=seen.grad)).fit(data(1), epochs=1)
    assert sorted(seen.names) == ["0.weight", "1.weight", "2.weight"]


def test_an_error_names_the_callback_and_the_parameter():
    def fails(gradient):
        raise ZeroDivisionError("by hand")

    model = net()
    with pytest.raises(ZeroDivisionError, match="by hand") as caught:
        make(model, ParameterHooks("2.*", grad=fails)).fit(data(), epochs=1)
    assert caught.value.__notes__[0] in [f"in ParameterHooks(2.*), grad hook of '2.{name}'" for name in ("weight", "bias")]
    assert left(model) == []


def test_no_hook_is_left_after_an_exception():
    class Fails(Callback):
        def on_train_iter_end(self, run):
            raise RuntimeError("enough")

    model, seen = net(), Seen()
    hooks = ParameterHooks("2.bias", grad=seen.grad)
    with pytest.raises(RuntimeError, match="enough"):
        make(model, hooks, Fails()).fit(data(), epochs=1)
    assert left(model) == []
    make(net(), hooks).fit(data(2), epochs=1)
    assert len(seen.calls) == 3


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_calls_the_hooks(backend):
    torch.compiler.reset()
    model, seen, plain = net(), Seen(), Seen()
    make(net(), ParameterHooks("*.weight", grad=plain.grad, post_accumulate_grad=plain.after)).fit(data(), epochs=2)
    compiled = torch.compile(model, backend=backend)
    compiled(data(1)[0][0]).sum().backward()
    hooks = ParameterHooks("*.weight", grad=seen.grad, post_accumulate_grad=seen.after)
    make(compiled, hooks).fit(data(), epochs=2)
    assert sorted(seen.names) == sorted(plain.names)
    for name in ("0.weight", "2.weight"):
        mine, its = ([gradient for one, gradient in calls if one == name] for calls in (seen.calls, plain.calls))
        torch.testing.assert_close(mine, its)
    assert left(model) == []
    torch.compiler.reset()


def test_hooks_listen_at_no_point_of_a_step():
    hooks = Loop([ParameterHooks("*", grad=print)], **QUIET).hooks
    points = ("on_iter_begin", "on_train_iter_begin", "on_backward_begin", "on_step_begin", "on_train_iter_end", "on_iter_end")
    assert all(hooks.dispatch(point, mode="train") is None for point in points)


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"ParameterHooks has no function to call\.\n  give      grad=\.\.\. or post_"):
        ParameterHooks("*")
    with pytest.raises(TypeError, match=r"ParameterHooks: grad must be a function, got 'x'"):
        ParameterHooks("*", grad="x")
    with pytest.raises(BadLoop, match=r"'0\.wieght' matches no parameter\.\n  similar   0\.weight"):
        make(net(), ParameterHooks("0.wieght", grad=print)).fit(data(), epochs=1)
