from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Runner, errors
from hookpoint.core.hooks.hooks import Hooks


class Fetch(Callback):
    def __init__(self, names):
        self.names, self.seen = names, []

    def _before_run(self, ctx):
        return self.names if ctx.iteration % 2 == 0 else None

    def _after_run(self, ctx, values):
        self.seen.append((ctx.iteration, values.results))


def fit(*callbacks):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, extra_callbacks=[], monitors=[])
    runner.fit((torch.ones(6, 2), torch.ones(6, 1)), epochs=1, batch_size=2)


def test_names_are_gathered_in_their_step_only():
    fetch = Fetch(["outputs", "weight.grad", "loss"])
    fit(fetch)
    assert [iteration for iteration, _ in fetch.seen] == [1, 2, 3]
    outputs, gradient, loss = fetch.seen[0][1]
    assert (tuple(outputs.shape), tuple(gradient.shape), loss.shape) == ((2, 1), (1, 2), ())
    assert fetch.seen[1][1] is None
    assert fetch.seen[2][1][2] < loss


@pytest.mark.parametrize(("names", "kind"), [("loss", torch.Tensor), ({"mine": "loss"}, dict), (["loss"], list)])
def test_results_have_the_form_of_the_names(names, kind):
    fetch = Fetch(names)
    fit(fetch)
    assert type(fetch.seen[0][1]) is kind


def test_an_unknown_name_is_named():
    with pytest.raises(errors.BadLoop, match=r"Fetch._before_run names 'weigth.grad'"):
        fit(Fetch(["weigth.grad"]))


def test_a_callback_without_these_methods_gets_no_companion():
    class Plain(Callback):
        def _before_run(self): ...

    assert [entry.name for entry in Hooks([Plain()]).entries] == ["Plain"]
