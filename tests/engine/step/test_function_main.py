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


def test_a_function_of_the_run_is_enough(net, batches):
    by_function = trained(net, batches, main=loss_of)
    assert torch.equal(by_function, trained(net, batches, criterion=nn.functional.mse_loss))
    assert torch.equal(by_function, trained(net, batches, main=lambda run: loss_of(run)))
    assert torch.equal(by_function, trained(net, batches, main=partial(loss_of)))


def test_it_is_used_in_validation_and_the_model_itself_in_prediction(net, batches):
    model, _ = net()
    runner = Runner(model, main=loss_of, metrics={"far": lambda outputs, targets: (outputs - targets).abs().max()})
    values = runner.validate(batches)
    assert set(values) == {"val_loss", "val_far"}
    with torch.no_grad():
        assert all(
            torch.equal(outputs, model(inputs)) for outputs, (inputs, _) in zip(runner.predict(batches), batches, strict=True)
        )


def test_it_bears_the_name_of_its_function():
    assert FunctionMain(loss_of).name == "loss_of"


def test_a_function_that_returns_nothing_is_told_so(net, batches):
    model, optimizer = net()
    with pytest.raises(BadLoop) as caught:
        Runner(model, optimizer, main=lambda run: None).fit(batches, epochs=1)
    assert str(caught.value) == "the forward pass did not set a loss.\n  set       run.loss in on_iter_forward"


def test_a_main_callback_is_taken_as_it_is(net, batches):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            run.loss = loss_of(run)

    assert torch.equal(trained(net, batches, main=Main()), trained(net, batches, main=loss_of))
    assert torch.equal(trained(net, batches, callbacks=[Main()]), trained(net, batches, main=loss_of))


@pytest.mark.parametrize("main", [loss_of, MainCallback()])
def test_main_and_one_in_the_list_are_one_too_many(net, main):
    class Listed(MainCallback):
        pass

    model, optimizer = net()
    with pytest.raises(MainPointTaken, match=r"two MainCallbacks: (loss_of|MainCallback) and Listed; a run has only one"):
        Runner(model, optimizer, main=main, callbacks=[Listed()])


def test_a_class_and_what_cannot_be_called_are_refused(net):
    model, optimizer = net()
    with pytest.raises(NotACallback, match=r"MainCallback is a class; expected an instance\.\n  write     MainCallback\(\)"):
        Runner(model, optimizer, main=MainCallback)
    with pytest.raises(BadLoop) as caught:
        Runner(model, optimizer, main=3)
    assert str(caught.value) == "main must be callable, got 3.\n  give      a MainCallback, or a function that returns the loss"
