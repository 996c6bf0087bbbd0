from __future__ import annotations

import pytest
import torch

from hookpoint import Callback, Loop, Runner, errors
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.loop.host import Host


class Fetch(Callback):
    def __init__(self, names):
        self.names, self.seen = names, []

    def _before_run(self, ctx):
        return self.names if ctx.iteration % 2 == 0 else None

    def _after_run(self, ctx, values):
        self.seen.append((ctx.iteration, values.results))


def fit(*callbacks, model=None, accumulate=1):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quiet = {"extra_callbacks": [], "monitors": []}
    runner = Runner(model, optimizer, torch.nn.MSELoss(), callbacks=callbacks, accumulate=accumulate, **quiet)
    runner.fit((torch.ones(6, 2), torch.ones(6, 1)), epochs=1, batch_size=2)


def test_names_are_fetched_only_in_the_step_that_requests_them():
    fetch = Fetch(["outputs", "weight.grad", "loss"])
    fit(fetch)
    assert [iteration for iteration, _ in fetch.seen] == [1, 2, 3]
    outputs, gradient, loss = fetch.seen[0][1]
    assert (tuple(outputs.shape), tuple(gradient.shape), loss.shape) == ((2, 1), (1, 2), ())
    assert fetch.seen[1][1] is None
    assert fetch.seen[2][1][2] < loss


@pytest.mark.parametrize(("names", "kind"), [("loss", torch.Tensor), ({"mine": "loss"}, dict), (["loss"], list)])
def test_results_have_the_structure_of_the_names(names, kind):
    fetch = Fetch(names)
    fit(fetch)
    assert type(fetch.seen[0][1]) is kind


def test_the_error_for_an_unknown_name_contains_it():
    with pytest.raises(errors.BadLoop, match=r"Fetch._before_run reads 'weigth.grad', but the model has no 'weigth'"):
        fit(Fetch(["weigth.grad"]))


def test_a_callback_with_other_parameters_has_no_companion():
    class Plain(Callback):
        def _before_run(self): ...

    assert [entry.name for entry in Hooks([Plain()]).entries] == ["Plain"]


def test_parameters_can_have_any_names():
    class Renamed(Callback):
        def __init__(self):
            self.seen, self.epochs = [], 0

        def _before_run(self, _):
            return "loss"

        def _after_run(self, context, fetched):
            self.seen.append((context.iteration, float(fetched.results) >= 0))

        def on_epoch_end(self):
            self.epochs += 1

    renamed = Renamed()
    fit(renamed)
    assert (renamed.seen, renamed.epochs) == ([(1, True), (2, True), (3, True)], 1)


def test_each_method_is_called_once_if_only_the_other_takes_a_context():
    class Mixed(Callback):
        def __init__(self):
            self.seen = []

        def _before_run(self):
            self.seen.append("before")

        def _after_run(self, ctx, values):
            self.seen.append(values.results)

    mixed = Mixed()
    fit(mixed)
    assert mixed.seen == ["before", None] * 3


def test_a_gradient_is_none_in_an_iteration_without_an_optimizer_step():
    class All(Fetch):
        def _before_run(self, ctx):
            return self.names

    fetch = All(["weight.grad", "loss"])
    fit(fetch, accumulate=2)
    found = [(iteration, gradient is not None, loss is not None) for iteration, (gradient, loss) in fetch.seen]
    assert found == [(1, False, True), (2, True, True), (3, True, True)]  # the last window has one iteration


def test_a_gradient_without_an_optimizer_raises():
    model = torch.nn.Linear(2, 1)
    text = r"Fetch._before_run needs an optimizer to read 'weight.grad'.\n  give      optimizer="
    with (
        pytest.raises(errors.BadLoop, match=text),
        Loop([Fetch("weight.grad")], model=model, extra_callbacks=[], monitors=[]) as run,
    ):
        for _ in run.batches([1]):
            model(torch.ones(1, 2)).sum().backward()


def test_the_error_policy_of_the_callback_applies(caplog):
    class Fails(Fetch):
        def _after_run(self, ctx, values):
            raise ValueError(f"at {ctx.iteration}")

    with pytest.raises(ValueError, match="at 1"):
        fit(Fails("loss"))
    fails = Fails("loss")
    fails.on_error = "warn"
    fit(fails)
    assert "failed at on_train_iter_end: ValueError: at 3; the run continues" in caplog.text


def test_a_trainer_without_skipped_batches_can_host_a_fetch():
    Host("Lightning", cannot={"on_iter_skip": "it never skips a batch"}).check(Hooks([Fetch("loss")]))


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.unused = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1), torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_module_name_refers_to_its_output_in_steps_that_request_it():
    hooks = []

    class Outputs(Fetch):
        def _before_run(self, ctx):
            hooks.append(len(model.body._forward_hooks))
            return super()._before_run(ctx)

    model, fetch = Tiny(), Outputs(["body", "head", "outputs"])
    fit(fetch, model=model)
    body, head, outputs = fetch.seen[0][1]
    assert (tuple(body.shape), body.requires_grad) == ((2, 3), False)
    assert torch.equal(head, outputs)
    assert fetch.seen[1][1] is None
    assert hooks == [0, 0, 0]
    assert not model.body._forward_hooks


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # from torch's compiler
def test_a_compiled_model_returns_module_outputs():
    model = Tiny()
    model.compile(backend="eager")
    fetch = Fetch("body")
    fit(fetch, model=model)
    assert [None if value is None else tuple(value.shape) for _, value in fetch.seen] == [(2, 3), None, (2, 3)]
    assert not model.body._forward_hooks


def test_a_module_that_is_not_called_raises():
    with pytest.raises(errors.BadLoop, match=r"reads 'unused', but iteration 1 did not call this module"):
        fit(Fetch("unused"), model=Tiny())


def test_a_metric_name_can_start_with_the_name_of_a_module():
    class Logs(Callback):
        def on_backward_end(self, run):
            run.log("head/size", 3.0)

    fetch = Fetch("head/size")
    fit(Logs(), fetch, model=Tiny())
    assert fetch.seen[0][1] == 3.0


def test_a_gradient_belongs_to_the_step_of_its_own_optimizer():
    class All(Fetch):
        def _before_run(self, ctx):
            return self.names

    fetch = All(["a.weight.grad", "b.weight.grad"])
    models = {name: torch.nn.Linear(1, 1, bias=False) for name in "ab"}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.0) for name, model in models.items()}
    with Loop([fetch], model=models, optimizer=optimizers, extra_callbacks=[], monitors=[]) as run:
        for batch in run.batches([1, 2]):
            for name in "ab"[:batch]:
                models[name].zero_grad()
                (batch * models[name](torch.ones(1, 1))).sum().backward()
                optimizers[name].step()
    assert [[None if one is None else one.item() for one in values] for _, values in fetch.seen] == [[1.0, None], [2.0, 2.0]]
