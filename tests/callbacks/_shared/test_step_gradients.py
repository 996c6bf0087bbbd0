from __future__ import annotations

import copy
import pickle

import pytest
import torch

from hookpoint import Callback, EnableCallbackIf, Loop
from hookpoint.callbacks import CheckNumerics, GradientStats, ProcessTensors, SummaryCollector
from hookpoint.callbacks._shared.step_gradients import OtherOptimizers


def two_networks(*callbacks, batches=3, skip_b=0, **options):
    """Train two networks whose gradients are 3 and 4 times the batch. The parameters of a third network are in no optimizer."""
    models = {name: torch.nn.Linear(1, 1, bias=False) for name in "abc"}
    optimizers = {name: torch.optim.SGD(models[name].parameters(), lr=0.0) for name in "ab"}
    options = {"extra_callbacks": [], "monitors": [], **options}
    with Loop(callbacks, model=models, optimizer=optimizers, **options) as run:
        for batch in run.batches(range(1, batches + 1)):
            for factor, name in enumerate("ab", 3):
                for model in models.values():
                    model.zero_grad()
                loss = factor * batch * models[name](torch.ones(1, 1)) + models["c"](torch.ones(1, 1))
                loss.sum().backward()
                if name == "a" or batch > skip_b:
                    optimizers[name].step()
    return run, optimizers


def test_gradients_are_read_at_the_step_of_their_own_optimizer():
    seen = []
    names = ["a.weight.grad", "b.weight.grad", "c.weight.grad"]
    _, optimizers = two_networks(
        ProcessTensors(names, lambda *values: seen.append([float(value) for value in values])), skip_b=1
    )
    assert seen == [[6.0, 8.0, 1.0], [9.0, 12.0, 1.0]]
    assert not any(optimizer._optimizer_step_pre_hooks for optimizer in optimizers.values())


class Histograms(Callback):
    def __init__(self):
        self.seen = {}

    def on_records(self, records):
        for record in records:
            if record.kind == "histogram":
                for name, value in record.values.items():
                    self.seen.setdefault(name, []).append((record.step, float(value)))


def test_histograms_contain_the_gradients_of_each_optimizers_step():
    monitor = Histograms()
    two_networks(
        SummaryCollector(collect_freq=2, collect_specified_data={"histogram_regular": "b"}), batches=5, monitors=[monitor]
    )
    assert monitor.seen["gradients/a.weight"] == [(1, 3.0), (2, 6.0), (4, 12.0)]
    assert monitor.seen["gradients/b.weight"] == [(1, 4.0), (2, 8.0), (4, 16.0)]
    assert monitor.seen["gradients/c.weight"] == [(1, 1.0), (2, 1.0), (4, 1.0)]


def test_a_condition_applies_to_the_steps_of_every_optimizer():
    run, _ = two_networks(EnableCallbackIf(GradientStats(every=1), lambda run: run.iteration < 2))
    assert run.metrics["gradient/norm@b"] == 6.0  # the mean of the first two of the values 4, 8 and 12


class Copies(Callback):
    def __init__(self, callback):
        self.callback = callback

    def on_epoch_end(self):
        pickle.loads(pickle.dumps(self.callback))
        copy.deepcopy(self.callback)


@pytest.mark.parametrize(
    "callback",
    [GradientStats(every=1), CheckNumerics(gradients=True), ProcessTensors(["b.weight.grad"], print), SummaryCollector()],
)
def test_a_callback_that_observes_several_optimizers_can_be_copied_during_a_run(callback):
    _, optimizers = two_networks(callback, Copies(callback))
    assert not any(optimizer._optimizer_step_pre_hooks for optimizer in optimizers.values())


class FailsAtOtherSteps(Callback):
    def __init__(self, **options):
        super().__init__(**options)
        self.others, self.steps = OtherOptimizers(), 0

    def on_run_begin(self, run):
        self.others.observe(run, self, self.fail)

    def fail(self, run, index):
        self.steps += 1
        raise ArithmeticError("too large")

    def on_run_end(self):
        self.others.remove()


def test_an_error_at_another_optimizers_step_follows_on_error(caplog):
    run, _ = two_networks(fails := FailsAtOtherSteps(on_error="disable"))
    assert (run.step, fails.steps) == (3, 1)
    assert caplog.messages == [
        "FailsAtOtherSteps failed at on_step_begin: ArithmeticError: too large; it is disabled for the rest of the run"
    ]


def test_an_error_at_another_optimizers_step_names_the_callback():
    with pytest.raises(ArithmeticError) as caught:
        two_networks(FailsAtOtherSteps())
    assert caught.value.__notes__ == ["in callback FailsAtOtherSteps at on_step_begin (step 1, rank 0)"]
