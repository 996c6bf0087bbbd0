from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Callback, MainCallback, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import BadLoop, HookpointError, UnknownMetric


class Count:
    """Accumulate over a pass, as torchmetrics does; `moved_to` is the device it was moved to."""

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
    """Return 14 samples in batches of four, four, four and two, and in one batch."""
    x, y = (torch.cat(part)[:14] for part in zip(*batches, strict=True))
    return list(zip(x.split(4), y.split(4), strict=True)), (x, y)


def test_a_metric_function_is_averaged_over_all_samples(runner, batches, distance):
    parts, (x, y) = uneven(batches)
    one = runner(metrics={"far": distance})
    with torch.no_grad():
        expected = distance(one.model(x), y).item()
    assert one.validate(parts)["val_far"] == pytest.approx(expected, rel=1e-6)


def test_a_metric_object_gets_every_batch_and_is_logged_once_per_pass(runner, batches):
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


def test_a_metric_object_keeps_its_count_through_a_validation(runner, batches):
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


def test_a_metric_function_runs_without_gradients(runner, batches):
    def metric(outputs, targets):
        seen.append(torch.is_grad_enabled())
        return 0.0

    seen = []
    runner(metrics={"metric": metric}).fit(batches, batches, epochs=1)
    assert seen == [False] * 10


def test_targets_default_to_the_last_part_of_the_batch(runner, batches, distance):
    class Main(MainCallback):
        def on_iter_forward(self, run):
            inputs, targets = run.batch
            run.outputs = run.model(inputs)
            run.loss = nn.functional.mse_loss(run.outputs, targets)

    own, default = (runner(*main, metrics={"far": distance, "count": Count()}) for main in ([Main()], []))
    assert own.validate(batches) == default.validate(batches)


class Tagger(nn.Module):
    """Takes labels and returns loss and logits by name, as Hugging Face models do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, inputs, mask=None, labels=None):
        logits = self.inner(inputs)
        return SimpleNamespace(loss=None if labels is None else nn.functional.mse_loss(logits, labels), logits=logits)


class Named(Tagger):
    def forward(self, inputs, mask=None, labels=None):
        return vars(super().forward(inputs, mask, labels))


def test_a_metric_gets_the_labels_passed_to_the_forward(runner, batches, distance):
    named = [{"inputs": x, "labels": y, "idx": torch.arange(4)} for x, y in batches]
    far = lambda outputs, targets: distance(outputs.logits, targets)  # noqa: E731
    labelled = runner(model=Tagger(), criterion=None, metrics={"far": far})
    plain = runner(model=copy.deepcopy(labelled.model.inner), metrics={"far": distance})
    assert {**labelled.fit(named, named, epochs=2).metrics} == {**plain.fit(batches, batches, epochs=2).metrics}


def test_a_main_function_need_not_set_the_targets_of_a_named_batch(runner, batches, distance):
    def main(run):
        run.outputs = run.model(run.batch["inputs"])
        return nn.functional.mse_loss(run.outputs, run.batch["labels"])

    named = [{"inputs": x, "labels": y} for x, y in batches]
    own, plain = runner(main=main, criterion=None, metrics={"far": distance}), runner(metrics={"far": distance})
    assert own.validate(named) == plain.validate(batches)


class Collection(nn.ModuleDict):
    """Like torchmetrics' MetricCollection: metrics by name, updated and computed together."""

    def __init__(self, **metrics):
        super().__init__()
        self.metrics = metrics

    def keys(self):
        return self.metrics.keys()

    def values(self):
        return self.metrics.values()

    def reset(self):
        for metric in self.values():
            metric.reset()

    def update(self, outputs, targets):
        for metric in self.values():
            metric.update(outputs, targets)

    def compute(self):
        return {name: metric.compute() for name, metric in self.metrics.items()}


def test_a_collection_logs_each_metric_under_its_own_name(runner, batches):
    parts, _ = uneven(batches)
    reads = cb.EarlyStopping("val_all_first", mode="max", patience=9)
    run = runner(reads, metrics={"all": Collection(first=Count(), second=Count())}).fit(batches, parts, epochs=2)
    assert {name: value for name, value in run.metrics.items() if "all" in name} == {
        "all_first": 20,
        "all_second": 20,
        "val_all_first": 14,
        "val_all_second": 14,
    }


def test_a_collection_passed_as_metrics_keeps_its_names(runner, batches):
    run = runner(metrics=Collection(first=Count())).fit(batches, epochs=1)
    assert run.metrics["first"] == 20


def test_an_unknown_name_in_a_collection_raises_with_a_suggestion(runner, batches):
    class Batches:  # no assert in it: the code that pytest generates for an assert could use any name
        def reset(self):
            self.seen = 0

        def update(self, outputs, targets):
            self.seen += 1

        def compute(self):
            return self.seen

    one = runner(cb.EarlyStopping("all_frist", mode="max"), metrics={"all": Collection(first=Batches())})
    with pytest.raises(UnknownMetric, match="Did you mean 'all_first'"):
        one.fit(batches, epochs=1)


def test_a_metric_may_compute_a_dict(runner, batches):
    class PerClass(Count):
        def compute(self) -> dict[str, float]:
            return {"cat": self.seen, "dog": 0}

    one = runner(cb.EarlyStopping("n_cat", mode="max", patience=9), metrics={"n": PerClass()})
    run = one.fit(batches, epochs=2)
    assert (run.metrics["n_cat"], run.metrics["n_dog"]) == (20, 0)


def test_a_collection_resumes_in_the_middle_of_an_epoch(tmp_path, net, batches, cuts, saves, cut_off):
    def fit(*callbacks, workdir):
        model, optimizer = net()
        options = {"metrics": {"all": Collection(first=Count(), second=Count())}, "callbacks": [saves(3), *callbacks]}
        one = hookpoint.Runner(
            model, optimizer, nn.functional.mse_loss, workdir=workdir, extra_callbacks=[], monitors=[], **options
        )
        return one.fit(batches, epochs=1)

    with pytest.raises(cut_off):
        fit(cuts(3), workdir=tmp_path)
    assert fit(workdir=tmp_path).metrics["all_second"] == 20


def test_torch_metrics_get_the_logits(runner, batches, distance):
    named = [{"inputs": x, "labels": y} for x, y in batches]
    of_torchmetrics = type("Of", (Count,), {"__module__": "torchmetrics.classification"})()
    one = runner(model=Named(), criterion=None, metrics={"far": nn.functional.l1_loss, "count": of_torchmetrics})
    plain = runner(model=copy.deepcopy(one.model.inner), metrics={"far": distance, "count": Count()})
    assert one.validate(named) == plain.validate(batches)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([len], 'metrics must map names to metrics, got list.\n  write     metrics={"len": len}'),
        (len, 'metrics must map names to metrics, got builtin_function_or_method.\n  write     metrics={"len": len}'),
        ([lambda outputs, targets: 1], 'metrics must map names to metrics, got list.\n  write     metrics={"name": function}'),
        (Count(), 'metrics must map names to metrics, got Count.\n  write     metrics={"Count": Count}'),
        ({"count": Count}, "Count is a class; expected an instance.\n  write     Count()"),
    ],
)
def test_invalid_metrics_raise_at_once(runner, given, message):
    with pytest.raises(HookpointError) as caught:
        runner(metrics=given)
    assert str(caught.value) == message


def test_a_metric_that_is_not_callable_raises_at_once(runner):
    with pytest.raises(BadLoop) as caught:
        runner(metrics={"acc": 3})
    assert str(caught.value) == "metrics['acc'] must be callable, got 3.\n  give      a function (outputs, targets) -> number"


def test_metrics_raise_if_the_forward_sets_no_outputs(runner, batches, distance):
    class OnlyLoss(MainCallback):
        def on_iter_forward(self, run):
            run.loss = nn.functional.mse_loss(run.model(run.batch[0]), run.batch[1])

    with pytest.raises(BadLoop) as caught:
        runner(OnlyLoss(), metrics={"far": distance}).fit(batches, epochs=1)
    assert str(caught.value) == (
        "metrics need outputs, but the forward did not set any.\n  set       run.outputs and run.targets in the forward"
    )
    assert "in callback MetricSet at on_train_iter_end (step 1, rank 0)" in caught.value.__notes__


def test_an_error_in_a_metric_names_the_point(runner, batches):
    def broken(outputs, targets):
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError) as caught:
        runner(metrics={"broken": broken}).validate(batches)
    assert "in callback MetricSet at on_val_iter_end (step 0, rank 0)" in caught.value.__notes__


def test_torchmetrics_values_are_computed_over_all_samples():
    torchmetrics = pytest.importorskip("torchmetrics")
    inputs = torch.randn(14, 4, generator=torch.Generator().manual_seed(0))
    targets = (inputs[:, 0] > 0).long()
    batches = [(inputs[at : at + 4], targets[at : at + 4]) for at in range(0, 14, 4)]  # the last one has two samples
    options = {"task": "multiclass", "num_classes": 2, "average": "macro"}
    kinds = {name: getattr(torchmetrics, name)(**options) for name in ("Accuracy", "F1Score")}
    metrics = {"all": torchmetrics.MetricCollection(kinds), "recall": torchmetrics.Recall(**options)}
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = hookpoint.Runner(model, optimizer, nn.CrossEntropyLoss(), metrics=metrics).validate(batches)
    functions = {"val_all_Accuracy": "accuracy", "val_all_F1Score": "f1_score", "val_recall": "recall"}
    expected = {
        name: getattr(torchmetrics.functional, one)(model(inputs), targets, **options) for name, one in functions.items()
    }
    assert {name: found[name] for name in expected} == pytest.approx({name: float(value) for name, value in expected.items()})
    assert len(set(expected.values())) > 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["loss"], "the metric 'loss' would be logged as 'loss'"),
        (["val_loss"], "the metric 'val_loss' would be logged as 'val_loss'"),
        (["learning_rate"], "the metric 'learning_rate' would be logged as 'learning_rate'"),
        (["far", "val_far"], "the metric 'val_far' would be logged as 'val_far'"),
        (["val_far", "far"], "the metric 'far' would be logged as 'val_far'"),
    ],
)
def test_a_metric_name_that_is_already_in_use_raises(runner, distance, names, message):
    with pytest.raises(BadLoop) as caught:
        runner(metrics=dict.fromkeys(names, distance))
    assert str(caught.value) == f"{message}, but this name is already in use.\n  use       another name"


def test_a_metric_named_as_in_validation_warns(runner, batches, distance, caplog):
    runner(metrics={"far": distance, "val_near": distance}).fit(batches, batches, epochs=1)
    assert caplog.messages == [
        "the metric 'val_near' is logged under this name in training and in validation; leave the prefix out of the name"
    ]
    assert "val_near" in runner(optimizer=None, metrics={"val_near": distance}).validate(batches)
    assert len(caplog.messages) == 1  # without training, the name is not ambiguous


def test_a_similar_name_is_accepted(runner, batches, distance):
    results = runner(metrics=dict.fromkeys(["val/loss", "loss2", "lr"], distance)).validate(batches)
    assert set(results) == {"val_loss", "val/loss", "val_loss2", "val_lr"}


class Failing(Count):
    """A metric object that fails in one of its methods."""

    def __init__(self, method):
        super().__init__()
        setattr(self, method, self.fail)

    def fail(self, *args):
        raise ZeroDivisionError("no samples")


class FailingCollection(Failing):
    """A collection of metrics that fails in one of its methods."""

    def keys(self):
        return ["one"]

    def values(self):
        return [Count()]


@pytest.mark.parametrize(
    ("metrics", "note"),
    [
        ({"a": lambda outputs, targets: 1.0, "b": lambda outputs: 1.0, "c": Count()}, "in metric 'b'"),
        ({"a": Count(), "b": Failing("update")}, "in metric 'b'"),
        ({"a": Count(), "b": Failing("compute")}, "in metric 'b'"),
        (FailingCollection("compute"), "in the metrics of the FailingCollection"),
    ],
)
def test_an_error_of_a_metric_names_the_metric(runner, batches, metrics, note):
    one = runner(metrics=metrics)
    for job in (lambda: one.fit(batches, epochs=1), lambda: one.validate(batches)):
        with pytest.raises((TypeError, ZeroDivisionError)) as caught:
            job()
        assert caught.value.__notes__[0] == note
