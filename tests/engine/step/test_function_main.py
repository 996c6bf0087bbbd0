from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hookpoint import MainCallback
from hookpoint.core.errors import BadLoop, MainPointTaken, NotACallback
from hookpoint.engine.runner import Runner
from hookpoint.engine.step.forward import FunctionMain


def loss_of(run):
    inputs, targets = run.batch
    run.outputs = run.model(inputs)
    run.targets = targets
    return nn.functional.mse_loss(run.outputs, targets)


def trained(net, batches, **options):
    model, optimizer = net()
    Runner(model, optimizer, **options).fit(batches, batches, epochs=2)
    return model.weight.detach().clone()


def test_a_function_of_the_run_can_be_the_main_callback(net, batches):
    by_function = trained(net, batches, main=loss_of)
    assert torch.equal(by_function, trained(net, batches, criterion=nn.functional.mse_loss))
    assert torch.equal(by_function, trained(net, batches, main=lambda run: loss_of(run)))
    assert torch.equal(by_function, trained(net, batches, main=partial(loss_of)))


def test_validation_uses_the_function_and_prediction_the_model(net, batches):
    model, _ = net()
    runner = Runner(model, main=loss_of, metrics={"far": lambda outputs, targets: (outputs - targets).abs().max()})
    values = runner.validate(batches)
    assert set(values) == {"val_loss", "val_far"}
    with torch.no_grad():
        assert all(
            torch.equal(outputs, model(inputs)) for outputs, (inputs, _) in zip(runner.predict(batches), batches, strict=True)
        )


def test_a_function_main_is_named_after_its_function():
    assert FunctionMain(loss_of).name == "loss_of"


def test_a_main_function_that_returns_none_raises(net, batches):
    model, optimizer = net()
    with pytest.raises(BadLoop) as caught:
        Runner(model, optimizer, main=lambda run: None).fit(batches, epochs=1)
    assert str(caught.value) == "the forward pass did not set a loss.\n  set       run.loss in on_iter_forward"


def test_main_accepts_a_main_callback(net, batches):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            run.loss = loss_of(run)

    assert torch.equal(trained(net, batches, main=Main()), trained(net, batches, main=loss_of))
    assert torch.equal(trained(net, batches, callbacks=[Main()]), trained(net, batches, main=loss_of))


@pytest.mark.parametrize("main", [loss_of, MainCallback()])
def test_main_and_a_main_callback_in_the_list_raise(net, main):
    class Listed(MainCallback):
        pass

    model, optimizer = net()
    with pytest.raises(MainPointTaken, match=r"two MainCallbacks: (loss_of|MainCallback) and Listed; a run has only one"):
        Runner(model, optimizer, main=main, callbacks=[Listed()])


def test_a_class_or_an_object_that_is_not_callable_raises(net):
    model, optimizer = net()
    with pytest.raises(NotACallback, match=r"MainCallback is a class; expected an instance\.\n  write     MainCallback\(\)"):
        Runner(model, optimizer, main=MainCallback)
    with pytest.raises(BadLoop) as caught:
        Runner(model, optimizer, main=3)
    assert str(caught.value) == "main must be callable, got 3.\n  give      a MainCallback, or a function that returns the loss"
