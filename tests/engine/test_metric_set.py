from __future__ import annotations

import pytest
import torch
from torch import nn

from hookpoint import Callback, MainCallback, on
from hookpoint.core.errors import BadLoop


class Count:
    """Add up over a pass, as torchmetrics does; `moved_to` says where it was moved."""

    def __init__(self):
        self.reset()
        self.moved_to = None

    def reset(self):
        self.seen = 0

    def to(self, device):
        self.moved_to = device

    def update(self, outputs, targets):
        assert outputs.shape == targets.shape
        assert not torch.is_grad_enabled()
        self.seen += len(targets)

    def compute(self):
        return self.seen


def uneven(batches):
    """The same samples in batches of four, four, four and two."""
    x, y = (torch.cat(part)[:14] for part in zip(*batches, strict=True))
    return list(zip(x.split(4), y.split(4), strict=True)), (x, y)


def test_a_function_is_averaged_over_the_pass_by_samples(runner, batches, distance):
    parts, (x, y) = uneven(batches)
    one = runner(metrics={"far": distance})
    with torch.no_grad():
        expected = distance(one.model(x), y).item()
    assert one.validate(parts)["val_far"] == pytest.approx(expected, rel=1e-6)


def test_an_object_gets_every_batch_and_is_logged_once_per_pass(runner, batches):
    parts, _ = uneven(batches)
    seen = []

    @on("on_epoch_end")
    def look(run, logs):
        seen.append((logs["count"], logs["val_count"]))

    one = runner(look, metrics={"count": Count()})
    run = one.fit(batches, parts, epochs=2)
    assert seen == [(20, 14), (20, 14)]
    assert run.monitors.get_history("count") == [(5, 20.0), (10, 20.0)]
    assert run.monitors.get_history("val_count") == [(5, 14.0), (10, 14.0)]


def test_an_object_is_put_on_the_device_and_training_keeps_its_count_through_a_validation(runner, batches):
    count = Count()

    class Validate(Callback):
        def on_train_iter_end(self, run):
            if run.iteration == 3:
                assert one.validate(batches[:2])["val_count"] == 8

    one = runner(Validate(), metrics={"count": count})
    run = one.fit(batches, epochs=1)
    assert run.metrics["count"] == 20
    assert "val_count" not in run.metrics
    assert count.moved_to == torch.device("cpu")


def test_a_function_sees_no_gradients(runner, batches):
    def metric(outputs, targets):
        seen.append(torch.is_grad_enabled())
        return 0.0

    seen = []
    runner(metrics={"metric": metric}).fit(batches, batches, epochs=1)
    assert seen == [False] * 10


def test_the_last_part_of_the_batch_stands_for_targets_that_a_forward_did_not_set(runner, batches, distance):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            inputs, targets = run.batch
            run.outputs = run.model(inputs)
            run.loss = nn.functional.mse_loss(run.outputs, targets)

    own, default = (runner(*main, metrics={"far": distance, "count": Count()}) for main in ([Main()], []))
    assert own.validate(batches) == default.validate(batches)


def test_what_is_no_metric_is_refused_at_once(runner):
    with pytest.raises(BadLoop) as caught:
        runner(metrics={"acc": 3})
    assert str(caught.value) == "metrics['acc'] is 3.\n  give      a function (outputs, targets) -> number"


def test_metrics_of_a_forward_that_sets_no_outputs_are_refused(runner, batches, distance):
    class OnlyLoss(MainCallback):
        def on_iter_forward(self, run):
            run.loss = nn.functional.mse_loss(run.model(run.batch[0]), run.batch[1])

    with pytest.raises(BadLoop) as caught:
        runner(OnlyLoss(), metrics={"far": distance}).fit(batches, epochs=1)
    assert str(caught.value) == (
        "metrics need outputs, and the forward left none.\n  set       run.outputs, and run.targets, in it"
    )
    assert "in callback MetricSet at on_train_iter_end (step 1, rank 0)" in caught.value.__notes__


def test_a_metric_that_fails_says_where(runner, batches):
    def broken(outputs, targets):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as caught:
        runner(metrics={"broken": broken}).validate(batches)
    assert "in callback MetricSet at on_val_iter_end (step 0, rank 0)" in caught.value.__notes__
