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
    """Batches of (tensor of so many samples, output) whose forward gives the output."""
    return [(torch.zeros(samples), value) for samples, value in values]


def second(batch):
    return batch[1]


def test_numbers_are_weighted_by_samples():
    batches = by_samples((5, {"cost": 1.0}), (1, {"cost": 4.0}))
    assert measure(ScalarStats("cost"), batches, forward=second) == {"validation_cost": 1.5}


def test_samples_are_counted_as_the_run_counts_them():
    batches = by_samples((5, {"cost": 1.0}), (1, {"cost": 4.0}))
    counts = {"samples": lambda batch: 6 - len(batch[0])}
    assert measure(ScalarStats("cost"), batches, forward=second, **counts) == {"validation_cost": 3.5}


def test_arrays_count_with_their_mean():
    batches = by_samples((2, {"cost": torch.tensor([1.0, 3.0])}), (1, {"cost": torch.tensor([[8.0]])}))
    assert measure(ScalarStats(["cost"]), batches, forward=second) == {"validation_cost": 4.0}


def test_whole_numbers_have_means_too():
    batches = by_samples((2, {"hits": torch.tensor([1, 0])}), (2, {"hits": torch.tensor([True, True])}), (1, {"hits": 0}))
    assert measure(ScalarStats("hits"), batches, forward=second) == {"validation_hits": 3 / 5}


@pytest.mark.parametrize(
    ("options", "name"),
    [({}, "validation_cost"), ({"prefix": "val"}, "val_cost"), ({"prefix": ""}, "cost"), ({"prefix": None}, "cost")],
)
def test_names_have_the_prefix(options, name):
    stats = ScalarStats("cost", **options)
    assert measure(stats, by_samples((1, {"cost": 2.0})), forward=second) == {name: 2.0}


def test_the_loss_of_the_run_is_known():
    def forward(run):
        run.outputs, run.loss = run.batch, run.batch.mean()

    assert measure(ScalarStats("loss"), [X[:4, 0], X[4:, 0]], forward=forward) == {"validation_loss": 5.0}


def test_an_output_called_loss_wins_over_that_of_the_run():
    def forward(run):
        run.outputs, run.loss = {"loss": 1.0}, 2.0

    assert measure(ScalarStats("loss"), [X], forward=forward) == {"validation_loss": 1.0}


def test_what_is_logged_in_the_pass_is_found_by_its_name():
    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(size=len(run.batch))
            run.put_scalar("just so", 2 * len(run.batch))

    stats = ScalarStats(["size", "just so"])
    assert measure(stats, [X[:4], X[4:]], Logs(), forward=lambda batch: batch) == {
        "validation_size": (4 * 4 + 2 * 2) / 6,
        "validation_just so": (8 * 4 + 4 * 2) / 6,
    }


def test_metrics_and_loss_of_a_runner():
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


def test_many_batches_are_added_up_in_double_precision():
    batches = by_samples(*[(1, {"cost": torch.tensor(0.1)})] * 3000)
    assert measure(ScalarStats("cost"), batches, forward=second)["validation_cost"] == pytest.approx(
        float(torch.tensor(0.1)), rel=1e-12
    )


# Mistakes


def test_a_name_that_is_nowhere_is_an_error_that_says_what_there_is():
    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(size=1)

    message = "ScalarStats reads 'costs', which is not among the outputs.\n  known     cost, val_size\n"
    with pytest.raises(MissingOutput, match=re.escape(message)):
        measure(ScalarStats(["cost", "costs"]), by_samples((1, {"cost": 2.0})), Logs(), forward=second)


def test_outputs_without_names_are_said_to_have_none():
    with pytest.raises(MissingOutput, match="known     none: the outputs are a Tensor, without names"):
        measure(ScalarStats("cost"), [X], forward=lambda batch: batch)


def test_an_output_that_is_gone_in_a_later_batch_is_an_error():
    with pytest.raises(MissingOutput, match=r"reads 'cost', which is not among the outputs\.\n  known     other"):
        measure(ScalarStats("cost"), by_samples((1, {"cost": 2.0}), (1, {"other": 2.0})), forward=second)


@pytest.mark.parametrize("value", ["2.0", [1.0], None])
def test_an_output_that_has_no_mean_is_refused(value):
    with pytest.raises(BadValue, match=f"ScalarStats: 'cost' must be a number, .*, got {type(value).__name__}"):
        measure(ScalarStats("cost"), by_samples((1, {"cost": value})), forward=second)


@pytest.mark.parametrize("names", [[], "", [3], ["cost", ""], 5])
def test_names_that_are_none_are_refused(names):
    with pytest.raises(TypeError):
        ScalarStats(names)
