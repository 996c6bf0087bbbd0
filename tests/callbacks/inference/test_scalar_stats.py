from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from hookpoint import Callback, Runner
from hookpoint.callbacks import InferenceRunner, ScalarStats
from hookpoint.core.errors import BadValue, MissingOutput
from hookpoint.core.loop.loop import Loop

X = torch.arange(12.0).reshape(6, 2)


def measure(inferencer, batches, *callbacks, forward=lambda batch: batch[0], **options):
    with Loop([*callbacks, InferenceRunner(batches, inferencer, forward=forward)], **options) as run:
        for _ in run.epochs(1):
            pass
    return {name: run.metrics[name] for name in inferencer.names}


def by_samples(*values):
    """Return batches of (tensor with that number of samples, output); `second` is the forward function for them."""
    return [(torch.zeros(samples), value) for samples, value in values]


def second(batch):
    return batch[1]


def test_values_are_weighted_by_samples():
    batches = by_samples((5, {"cost": 1.0}), (1, {"cost": 4.0}))
    assert measure(ScalarStats("cost"), batches, forward=second) == {"validation_cost": 1.5}


def test_the_sample_count_of_the_run_is_used():
    batches = by_samples((5, {"cost": 1.0}), (1, {"cost": 4.0}))
    counts = {"samples": lambda batch: 6 - len(batch[0])}
    assert measure(ScalarStats("cost"), batches, forward=second, **counts) == {"validation_cost": 3.5}


def test_arrays_count_as_their_mean():
    batches = by_samples((2, {"cost": torch.tensor([1.0, 3.0])}), (1, {"cost": torch.tensor([[8.0]])}))
    assert measure(ScalarStats(["cost"]), batches, forward=second) == {"validation_cost": 4.0}


def test_integers_and_booleans_are_averaged_as_floats():
    batches = by_samples((2, {"hits": torch.tensor([1, 0])}), (2, {"hits": torch.tensor([True, True])}), (1, {"hits": 0}))
    assert measure(ScalarStats("hits"), batches, forward=second) == {"validation_hits": 3 / 5}


@pytest.mark.parametrize(
    ("options", "name"),
    [({}, "validation_cost"), ({"prefix": "val"}, "val_cost"), ({"prefix": ""}, "cost"), ({"prefix": None}, "cost")],
)
def test_names_start_with_the_prefix(options, name):
    stats = ScalarStats("cost", **options)
    assert measure(stats, by_samples((1, {"cost": 2.0})), forward=second) == {name: 2.0}


def test_the_loss_of_the_run_is_found_by_name():
    def forward(run):
        run.outputs, run.loss = run.batch, run.batch.mean()

    assert measure(ScalarStats("loss"), [X[:4, 0], X[4:, 0]], forward=forward) == {"validation_loss": 5.0}


def test_an_output_named_loss_is_preferred_to_the_loss_of_the_run():
    def forward(run):
        run.outputs, run.loss = {"loss": 1.0}, 2.0

    assert measure(ScalarStats("loss"), [X], forward=forward) == {"validation_loss": 1.0}


def test_values_logged_during_the_pass_are_found_by_name():
    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(size=len(run.batch))
            run.put_scalar("just so", 2 * len(run.batch))

    stats = ScalarStats(["size", "just so"])
    assert measure(stats, [X[:4], X[4:]], Logs(), forward=lambda batch: batch) == {
        "validation_size": (4 * 4 + 2 * 2) / 6,
        "validation_just so": (8 * 4 + 4 * 2) / 6,
    }


def test_metrics_and_loss_of_a_runner_are_found_by_name():
    torch.manual_seed(0)
    model, y = nn.Linear(2, 1), torch.randn(6, 1)
    stats = InferenceRunner([(X[:5], y[:5]), (X[5:], y[5:])], [ScalarStats(["loss", "off"])])
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        nn.MSELoss(),
        metrics={"off": lambda outputs, targets: (outputs - targets).abs().mean()},
        callbacks=[stats],
        extra_callbacks=[],
        monitors=[],
        device="cpu",
    )
    run = runner.fit([(X, y)], epochs=1)
    with torch.no_grad():
        off = (model(X) - y).double()
    assert run.metrics["validation_loss"] == pytest.approx(float(off.square().mean()), rel=1e-6)
    assert run.metrics["validation_off"] == pytest.approx(float(off.abs().mean()), rel=1e-6)
    assert "val_loss" not in run.metrics
    assert "val_off" not in run.metrics


def test_many_batches_are_summed_in_double_precision():
    batches = by_samples(*[(1, {"cost": torch.tensor(0.1)})] * 3000)
    assert measure(ScalarStats("cost"), batches, forward=second)["validation_cost"] == pytest.approx(
        float(torch.tensor(0.1)), rel=1e-12
    )


# Errors


def test_the_error_for_an_unknown_name_lists_the_outputs_and_metrics():
    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(size=1)

    message = "ScalarStats reads 'costs', which is not among the outputs.\n  known     cost, val_size\n"
    with pytest.raises(MissingOutput, match=re.escape(message)):
        measure(ScalarStats(["cost", "costs"]), by_samples((1, {"cost": 2.0})), Logs(), forward=second)


def test_the_error_for_outputs_without_names_says_so():
    with pytest.raises(MissingOutput, match="known     none: the outputs are a Tensor, without names"):
        measure(ScalarStats("cost"), [X], forward=lambda batch: batch)


def test_an_output_missing_in_a_later_batch_raises():
    with pytest.raises(MissingOutput, match=r"reads 'cost', which is not among the outputs\.\n  known     other"):
        measure(ScalarStats("cost"), by_samples((1, {"cost": 2.0}), (1, {"other": 2.0})), forward=second)


@pytest.mark.parametrize("value", ["2.0", [1.0], None])
def test_an_output_without_a_mean_raises(value):
    with pytest.raises(BadValue, match=f"ScalarStats: 'cost' must be a number, .*, got {type(value).__name__}"):
        measure(ScalarStats("cost"), by_samples((1, {"cost": value})), forward=second)


@pytest.mark.parametrize("names", [[], "", [3], ["cost", ""], 5])
def test_invalid_names_raise(names):
    with pytest.raises(TypeError):
        ScalarStats(names)
