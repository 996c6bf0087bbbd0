from __future__ import annotations

import copy
import math
import os
import pickle
import random
import re
import signal
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Callback, CallbackPipeline, Every, LambdaCallback, Loop, MainCallback, Runner, StopRun
from hookpoint.callbacks import ClassificationError, EarlyStopping, Inferencer, InferenceRunner, MinSaver, ScalarStats
from hookpoint.core.errors import BadLoop, BadValue, CompileError, MissingMetric, MissingOutput, UnknownMetric
from hookpoint.core.loop.services import machine_of

BARE = {"extra_callbacks": [], "monitors": []}
CLASSES = 6


def data(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)


TRAIN, VAL, TEST = data(32, 1), data(23, 2), data(9, 3)
VAL_BATCHES = list(zip(VAL[0].split([10, 10, 3]), VAL[1].split([10, 10, 3]), strict=True))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES))


def fit(*callbacks, epochs=2, model=None, metrics=None, main=None, val=None, **options):
    """Train with dropout, shuffled data, batch normalization and momentum; return the run."""
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"seed": 7, "device": "cpu", **BARE, **options}
    runner = Runner(model, optimizer, nn.CrossEntropyLoss(), metrics=metrics, main=main, callbacks=callbacks, **options)
    return runner.fit(DataLoader(TensorDataset(*TRAIN), batch_size=8, shuffle=True), val, epochs=epochs)


def own_loop(*callbacks, epochs=2, model=None, **options):
    """Run the same training in a hand-written loop."""
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    model.train()
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=8, shuffle=True)
    with Loop(callbacks, model=model, optimizer=optimizer, **{**BARE, **options}) as run:
        for _ in run.epochs(epochs):
            for x, y in run.batches(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return run


jobs = pytest.mark.parametrize("train", [fit, own_loop])


def error_of(model, x, y, k=1):
    """Return the error, computed one sample at a time."""
    model.eval()
    with torch.no_grad():
        ranked = model(x).argsort(1, descending=True)[:, :k].tolist()
    return sum(int(target) not in best for best, target in zip(ranked, y, strict=True)) / len(y)


def top(k, name):
    return ClassificationError(f"wrong-top{k}", name)


class Reader(Callback):
    """Reads a metric whenever it is triggered."""

    def __init__(self, metric):
        super().__init__()
        self.reads = (metric,)
        self.seen = []

    def on_trigger(self, run):
        self.seen.append((run.step, run.metrics[self.reads[0]]))


# Results


@jobs
def test_the_error_of_uneven_batches_matches_a_naive_implementation(train):
    model = network()
    run = train(InferenceRunner(VAL_BATCHES, [top(1, "val-error-top1"), top(5, "val-error-top5")]), model=model)
    assert run.metrics["val-error-top1"] == error_of(model, *VAL)
    assert run.metrics["val-error-top5"] == error_of(model, *VAL, k=5)
    assert [step for step, _ in run.monitors.get_history("val-error-top1")] == [4, 8]


@jobs
@pytest.mark.parametrize(
    "form",
    [
        lambda: DataLoader(TensorDataset(*VAL), batch_size=7),
        lambda: DataLoader(TensorDataset(*VAL), batch_size=7, shuffle=True),
        lambda: list(VAL_BATCHES),
        lambda: {"data": VAL, "batch_size": 4},
        lambda: {"data": tuple(part.numpy() for part in VAL), "batch_size": 4},
    ],
)
def test_all_forms_of_data_give_the_same_result(train, form):
    given = form()
    given = given if isinstance(given, dict) else {"data": given}
    model = network()
    run = train(InferenceRunner(infs=top(1, "error"), **given), model=model)
    assert run.metrics["error"] == error_of(model, *VAL)


@jobs
def test_several_runners_do_not_affect_each_other(train):
    alone = {name: train(InferenceRunner([part], top(1, name))).metrics[name] for name, part in (("val", VAL), ("test", TEST))}
    both = train(InferenceRunner([VAL], top(1, "val")), InferenceRunner([TEST], top(1, "test")))
    assert {name: both.metrics[name] for name in alone} == alone
    assert alone["val"] != alone["test"]


def test_runners_can_share_an_inferencer():
    shared = ScalarStats("loss")
    first, second = InferenceRunner([VAL], shared), InferenceRunner([TEST], shared)
    assert fit(first).metrics["validation_loss"] != fit(second).metrics["validation_loss"]
    assert fit(first).metrics["validation_loss"] == fit(InferenceRunner([VAL], ScalarStats("loss"))).metrics["validation_loss"]


class Largest:
    """A custom inferencer."""

    names = ("largest", "seen")

    def reset(self):
        self.largest, self.seen = -math.inf, []

    def update(self, run):
        self.largest = max(self.largest, float(run.outputs.max()))
        self.seen.append((run.mode, run.batch_idx, len(run.targets)))

    def results(self, logged):
        return {"largest": self.largest, "seen": len(self.seen), "more": 1.0}


def test_a_custom_inferencer_can_be_used():
    model, inferencer = network(), Largest()
    run = fit(InferenceRunner(VAL_BATCHES, inferencer), model=model)
    model.eval()
    assert run.metrics["largest"] == pytest.approx(model(VAL[0]).max().item())
    assert (run.metrics["seen"], run.metrics["more"]) == (3.0, 1.0)
    assert inferencer.seen == [("val", 0, 10), ("val", 1, 10), ("val", 2, 3)]


@dataclass
class SimpleOutput:
    logits: Any
    hidden: Any = None


class NamedOutput(NamedTuple):
    logits: Any
    hidden: Any = None


class Accuracy(nn.Module):
    """Like a metric of torchmetrics: a module that accumulates its values."""

    def __init__(self):
        super().__init__()
        self.updates = []
        self.reset()

    def reset(self):
        self.right = self.all = 0

    def update(self, outputs, targets):
        self.updates.append(len(targets))
        self.right = self.right + (outputs.argmax(1) == targets).sum()
        self.all += len(targets)

    def compute(self):
        return self.right / self.all


@jobs
def test_metrics_are_given_by_name(train):
    given, model = Accuracy(), network()
    metrics = {"val-acc": given, "off": lambda outputs, targets: (outputs.argmax(1) != targets).float()}
    run = train(InferenceRunner(VAL_BATCHES, top(1, "error"), metrics=metrics), model=model)
    assert run.metrics["val-acc"] == pytest.approx(1 - error_of(model, *VAL))
    assert run.metrics["off"] == run.metrics["error"]
    assert given.updates == []  # it was copied


class Collection(nn.ModuleDict):
    """Like a MetricCollection of torchmetrics: named metrics that are updated and computed together."""

    def __init__(self, metrics):
        super().__init__()
        super().update(metrics)

    def reset(self):
        for metric in self.values():
            metric.reset()

    def update(self, outputs, targets):
        for metric in self.values():
            metric.update(outputs, targets)

    def compute(self):
        return {name: metric.compute() for name, metric in self.items()}


@jobs
def test_a_metric_collection_logs_a_value_for_each_metric(train):
    alone = train(InferenceRunner(VAL_BATCHES, metrics={"acc": Accuracy()})).metrics["acc"]
    runner = InferenceRunner(VAL_BATCHES, metrics={"val": Collection({"one": Accuracy(), "two": Accuracy()})})
    assert runner.writes == ("val_one", "val_two")
    run = train(runner)
    assert (run.metrics["val_one"], run.metrics["val_two"]) == (alone, alone)


def test_a_metric_can_compute_a_dict():
    class PerClass(Accuracy):
        def compute(self) -> dict[str, Any]:
            return {"all": super().compute(), "none": 0.0}

    readers = EarlyStopping("acc_all", mode="max", patience=9)
    run = fit(InferenceRunner([VAL], metrics={"acc": PerClass()}), readers)
    assert run.metrics["acc_all"] > run.metrics["acc_none"] == 0.0


@pytest.mark.parametrize("kind", [dict, SimpleOutput, NamedOutput])
def test_named_outputs_are_measured_by_their_logits(kind):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, inputs):
            return kind(logits=self.inner(inputs), hidden=None)

    model = Named()
    metric = Accuracy()
    assert fit(InferenceRunner([VAL], top(1, "error")), model=model).metrics["error"] == error_of(model.inner, *VAL)
    of_torchmetrics = type("Of", (Accuracy,), {"__module__": "torchmetrics.classification"})()
    run = fit(InferenceRunner([VAL], top(1, "error"), metrics={"acc": of_torchmetrics}), model=model)
    assert run.metrics["acc"] == pytest.approx(1 - run.metrics["error"])
    with pytest.raises(AttributeError):  # a custom metric gets the outputs of the model unchanged
        fit(InferenceRunner([VAL], metrics={"acc": metric}), model=model)


def test_the_runner_can_use_the_same_metric_object():
    accuracy = Accuracy()
    expected = fit(metrics={"acc": Accuracy()}).metrics["acc"]
    run = fit(InferenceRunner([VAL], metrics={"val-acc": accuracy}).when(Every(steps=3)), metrics={"acc": accuracy})
    assert run.metrics["acc"] == expected


# Validation pass


class Points(Callback):
    def __init__(self, model=None):
        self.seen, self.shown, self.model = [], [], model

    def on_val_epoch_begin(self, run):
        self.seen.append("begin")
        self.grad = torch.is_grad_enabled()
        self.modes = {part.training for part in run.model.modules()}

    def on_val_iter_end(self, run):
        self.seen.append((run.mode, run.batch_idx))
        self.shown.append(tuple(run.progress))

    def on_val_epoch_end(self, run):
        self.seen.append("end")

    def on_train_iter_end(self, run):
        assert run.model.training
        assert torch.is_grad_enabled()


@jobs
@pytest.mark.parametrize("when", [None, Every(steps=4)])
def test_a_pass_fires_its_points_in_eval_mode_and_sets_progress(train, when):
    points, runner = Points(), InferenceRunner(VAL_BATCHES, top(1, "error"))
    run = train(runner if when is None else runner.when(when), points, epochs=1)
    assert points.seen == ["begin", ("val", 0), ("val", 1), ("val", 2), "end"]
    assert points.shown == [("val", 1, 3), ("val", 2, 3), ("val", 3, 3)]
    assert points.modes == {False}
    assert not points.grad
    assert (run.epoch, run.step, run.iteration, run.samples) == (1, 4, 4, 32)


def test_only_results_are_logged_and_the_validation_of_fit_keeps_its_values():
    class Logs(Callback):
        def on_val_iter_end(self, run):
            run.log(own=1.0)

    off = {"off": lambda outputs, targets: (outputs.argmax(1) != targets).float().mean()}
    expected = fit(Logs(), val=[TEST], metrics=off)
    run = fit(InferenceRunner([VAL], top(1, "error")), Logs(), val=[TEST], metrics=off)
    assert {name: value for name, value in run.metrics.items() if name != "error"} == dict(expected.metrics)
    assert run.monitors.get_history("val_loss") == expected.monitors.get_history("val_loss")
    alone = fit(InferenceRunner([VAL], top(1, "error")), Logs(), metrics=off)
    assert set(alone.metrics) == {"loss", "off", "learning_rate", "error"}


def test_monitors_get_the_results_with_step_and_mode():
    class Monitor(Callback):
        def __init__(self):
            self.rows = []

        def on_records(self, records):
            self.rows += [(one.step, one.epoch, one.at, one.mode, set(one.values)) for one in records if "error" in one.values]

    monitor = Monitor()
    fit(InferenceRunner([VAL], [top(1, "error"), top(2, "error2")]).when(Every(steps=3)), monitor)
    assert monitor.rows == [
        (3, 1, "epoch", "val", {"error", "error2"}),
        (6, 2, "epoch", "val", {"error", "error2"}),
    ]


def test_a_plateau_scheduler_still_steps_on_the_training_loss():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        lr_scheduler=scheduler,
        callbacks=[InferenceRunner([VAL], top(1, "error"))],
        device="cpu",
        **BARE,
    )
    run = runner.fit([TRAIN], epochs=2)
    assert run.val_loader is None
    assert scheduler.best == min(value for _, value in run.monitors.get_history("loss"))


# Side effects


def weights(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


class Draws(DataLoader):
    """A loader that draws random numbers from every generator while it is iterated over."""

    def __iter__(self):
        for batch in super().__iter__():
            random.random()
            np.random.rand()
            torch.rand(3)
            yield batch


@jobs
@pytest.mark.parametrize("when", [None, Every(steps=1), Every(steps=3)])
def test_training_is_bitwise_the_same_as_without_inference(train, when):
    random.seed(1)
    np.random.seed(1)
    expected = weights(train())
    after = (random.random(), np.random.rand(), torch.rand(3))
    random.seed(1)
    np.random.seed(1)
    runner = InferenceRunner(Draws(TensorDataset(*VAL), batch_size=5, shuffle=True), top(1, "error"))
    assert equal(weights(train(runner if when is None else runner.when(when))), expected)
    now = (random.random(), np.random.rand(), torch.rand(3))
    assert now[:2] == after[:2]
    assert torch.equal(now[2], after[2])


def test_a_generator_shared_by_both_loaders_is_restored():
    def train(*callbacks):
        generator = torch.Generator().manual_seed(3)
        made = [callback(generator) for callback in callbacks]
        model = network()
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            nn.CrossEntropyLoss(),
            callbacks=made,
            seed=7,
            device="cpu",
            **BARE,
        )
        return weights(runner.fit(DataLoader(TensorDataset(*TRAIN), batch_size=8, shuffle=True, generator=generator), epochs=2))

    def inference(generator):
        return InferenceRunner(DataLoader(TensorDataset(*VAL), batch_size=5, shuffle=True, generator=generator), top(1, "e"))

    assert equal(train(inference), train())


@jobs
def test_train_and_eval_modes_are_restored_for_each_module(train):
    class Freeze(Callback):
        def on_train_iter_begin(self, run):
            run.model[1].eval()

        def on_train_iter_end(self, run):
            assert [part.training for part in run.model] == [True, False, True, True, True]

    train(Freeze(), InferenceRunner([VAL], top(1, "error")).when(Every(steps=1)))


class Fails(Callback):
    """Fails in the validation pass at the given point."""

    def __init__(self, point):
        self.point, self.states, self.ends = point, [], 0

    def on_val_epoch_begin(self):
        self._fail("on_val_epoch_begin")

    def on_val_iter_end(self, run):
        if run.batch_idx == 1:
            self._fail("on_val_iter_end")

    def on_val_epoch_end(self):
        self.ends += 1
        self._fail("on_val_epoch_end")

    def on_train_iter_end(self, run):
        self.states.append((run.mode, run.model.training, torch.is_grad_enabled(), len(machine_of(run).scopes.passes)))

    def _fail(self, point):
        if point == self.point:
            raise KeyError(point)


class FailingForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, x):
        if not self.training and len(x) == 3:
            raise KeyError("forward")
        return self.inside(x)


def failing_loader():
    yield VAL_BATCHES[0]
    raise KeyError("loader")


class Loader:
    def __init__(self, make):
        self.__iter = make

    def __iter__(self):
        return self.__iter()


class FailingInferencer(Largest):
    def __init__(self, part):
        self.part = part

    def update(self, run):
        super().update(run)
        if self.part == "update":
            raise KeyError("update")

    def results(self, logged):
        raise KeyError("results")


@jobs
@pytest.mark.parametrize("when", [None, Every(steps=2)])
@pytest.mark.parametrize(
    "where",
    ["on_val_epoch_begin", "on_val_iter_end", "on_val_epoch_end", "forward", "loader", "update", "results"],
)
def test_a_contained_failure_leaves_the_run_unchanged(train, when, where):
    infs = FailingInferencer(where) if where in ("update", "results") else top(1, "error")
    given = Loader(failing_loader) if where == "loader" else VAL_BATCHES
    fails = Fails(where)
    runner = InferenceRunner(given, infs, on_error="warn")
    model = FailingForward() if where == "forward" else network()
    expected = weights(train(model=copy.deepcopy(model)))
    run = train(runner if when is None else runner.when(when), fails, model=model)
    assert equal(weights(run), expected)
    assert set(fails.states) == {("train", True, True, 1)}
    assert bool(fails.ends) is (where in ("on_val_epoch_end", "results"))  # a pass that failed before its end has no end point
    assert run.mode is None
    assert not {"error", "largest"} & set(run.metrics)


@jobs
def test_a_failure_ends_the_run_and_names_the_callback(train):
    model = FailingForward()
    before = [part.training for part in model.modules()]
    with pytest.raises(KeyError, match="forward") as raised:
        train(InferenceRunner(VAL_BATCHES, top(1, "error")), model=model)
    assert [part.training for part in model.modules()] == before
    assert "in callback InferenceRunner(error) at on_epoch_end (step 4, rank 0)" in raised.value.__notes__


def test_a_failed_batch_can_be_skipped_and_does_not_count():
    class Skips(Callback):
        def on_iter_error(self, run, error):
            run.skip_batch()

    model = FailingForward()
    run = fit(InferenceRunner(VAL_BATCHES, top(1, "error")), Skips(), model=model)
    assert run.metrics["error"] == error_of(model.inside, VAL[0][:20], VAL[1][:20])


# Schedules


def test_with_a_schedule_each_pass_logs_its_own_value():
    values, reader = {}, Reader("error")

    class Counts(Callback):
        def on_train_iter_end(self, run):
            values[run.step] = error_of(copy.deepcopy(run.model), *VAL)

    run = fit(
        reader.when(Every(steps=5)),
        Counts(),
        InferenceRunner(VAL_BATCHES, top(1, "error")).when(Every(steps=5)),
        epochs=4,
        log_every=2,
    )
    expected = [(step, values[step]) for step in (5, 10, 15)]
    assert run.monitors.get_history("error") == expected
    assert reader.seen == expected


def test_an_epoch_cut_short_by_a_stop_is_not_measured():
    class Stops(Callback):
        def on_train_iter_end(self, run):
            if run.step == 6:
                run.stop("enough")

    run = fit(InferenceRunner([VAL], top(1, "error")), Stops(), epochs=5)
    assert [step for step, _ in run.monitors.get_history("error")] == [4]


@pytest.mark.parametrize("stops", [{"max_steps": 8}, {}])
def test_the_last_epoch_is_measured_even_after_a_stop_request(stops):
    class Stops(Callback):
        def on_epoch_end(self, run):
            if run.epoch == 2:
                run.stop("enough")

    model = network()
    runner = Runner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(),
        callbacks=[Stops(), InferenceRunner(VAL_BATCHES, top(1, "error"))],
        device="cpu",
        **BARE,
    )
    run = runner.fit(DataLoader(TensorDataset(*TRAIN), batch_size=8), epochs=5, **stops)
    assert [step for step, _ in run.monitors.get_history("error")] == [4, 8]
    assert run.metrics["error"] == error_of(model, *VAL)


def test_a_pass_between_steps_is_not_reported_as_a_slow_callback(caplog):
    class Slow(InferenceRunner):
        is_internal = False

    model = network()
    for kind, is_named in ((InferenceRunner, False), (Slow, True)):
        runner = Runner(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            nn.CrossEntropyLoss(),
            callbacks=[kind(VAL_BATCHES * 5, top(1, "error")).when(Every(steps=1))],
            device="cpu",
            **BARE,
        )
        runner.fit([TRAIN] * 10, epochs=3)
        assert ("of the step" in caplog.text) is is_named


# Order of writers and readers


@jobs
def test_a_reader_listed_first_sees_the_value_of_the_same_epoch(train):
    reader = Reader("error")
    run = train(reader, InferenceRunner(VAL_BATCHES, top(1, "error")))
    assert reader.seen == run.monitors.get_history("error")
    assert [step for step, _ in reader.seen] == [4, 8]


def test_a_saver_listed_first_saves_the_best_value(tmp_path):
    saver = MinSaver("val-error-top1")
    run = fit(
        saver,
        InferenceRunner(VAL_BATCHES, [top(1, "val-error-top1"), top(5, "val-error-top5")]),
        epochs=3,
        workdir=tmp_path,
    )
    history = run.monitors.get_history("val-error-top1")
    best = min(value for _, value in history)
    assert (saver.best.step, saver.best.value) == next(pair for pair in history if pair[1] == best)
    assert (tmp_path / "checkpoints" / "best-val-error-top1").exists()


def test_a_misspelled_metric_in_a_reader_raises_before_training(caplog):
    inference = InferenceRunner([VAL], top(1, "val-error-top1"))
    with pytest.raises(UnknownMetric, match="reads 'val-error-topl', which nothing logs"):
        fit(EarlyStopping("val-error-topl"), inference)
    with pytest.raises(MissingMetric, match="there is no metric 'val-error-topl'"):
        fit(Reader("val-error-topl"), inference)
    assert "did you mean 'val-error-top1'?" in caplog.text


def test_an_unknown_metric_raises_unless_an_inferencer_is_custom():
    with pytest.raises(UnknownMetric, match="reads 'other_loss'"):
        fit(EarlyStopping("other_loss"), InferenceRunner([VAL], top(1, "error")))

    class More(Largest):
        def results(self, logged):
            return {**super().results(logged), "other_loss": 1.0}

    assert fit(EarlyStopping("other_loss"), InferenceRunner([VAL], More())).epoch == 2


@pytest.mark.parametrize("name", ["error", "eror"])
def test_a_reader_waits_for_a_scheduled_metric(name):
    inference = InferenceRunner([VAL], top(1, "error")).when(Every(epochs=3))
    reader, other = EarlyStopping(name, mode="min"), LambdaCallback(on_setup=lambda: None)
    if name == "error":
        assert fit(reader, inference, other, epochs=5).epoch == 5
    else:
        with pytest.raises(MissingMetric, match="by the end of epoch 1"):
            fit(reader, inference, other, epochs=5)


def test_the_runner_declares_the_metrics_it_writes():
    runner = InferenceRunner([VAL], [top(1, "a"), ScalarStats(["b", "c"])], metrics={"d": Accuracy()})
    assert runner.writes == ("a", "validation_b", "validation_c", "d")
    assert runner.name == "InferenceRunner(a)"


# Forward


def test_the_forward_of_the_main_callback_is_used_by_default():
    class Main(MainCallback):
        def on_val_forward(self, run):
            run.outputs = {"wrong": torch.tensor([1.0, 0.0, 0.0, 0.0])}

    assert fit(Main(), InferenceRunner([VAL], ClassificationError("wrong", "error"))).metrics["error"] == 0.25


@jobs
@pytest.mark.parametrize("kind", ["batch", "run", "run that is set"])
def test_forward_can_be_a_function_of_the_batch_or_of_the_run(train, kind):
    other = network()
    other.eval()

    def of_run(run):
        assert run.mode == "val"
        assert not torch.is_grad_enabled()
        return other(run.batch[0])

    def sets(run):
        run.outputs, run.targets = other(run.batch[0]), 5 - run.batch[1]

    forward = {"batch": lambda batch: other(batch[0]), "run": of_run, "run that is set": sets}[kind]
    run = train(InferenceRunner(VAL_BATCHES, top(1, "error"), forward=forward))
    assert run.metrics["error"] == error_of(other, VAL[0], 5 - VAL[1] if kind == "run that is set" else VAL[1])


def test_forward_can_be_a_model_that_takes_the_batch():
    class Whole(nn.Module):
        def forward(self, batch):
            return {"wrong": torch.ones(len(batch[0]))}

    assert own_loop(InferenceRunner([VAL], ClassificationError("wrong"), forward=Whole())).metrics["validation_error"] == 1.0


def test_forward_runs_in_the_precision_of_the_run():
    kinds = []

    class Kinds(Callback):
        def on_val_iter_end(self, run):
            kinds.append(run.outputs.dtype)

    model = network()
    runners = [
        InferenceRunner([VAL], top(1, "a")),
        InferenceRunner([VAL], top(1, "b"), forward=lambda batch: model(batch[0])),
    ]
    run = fit(*runners, Kinds(), model=model, precision="bf16", epochs=1)
    assert kinds == [torch.bfloat16] * 2
    assert run.metrics["a"] == run.metrics["b"]


def test_targets_are_found_in_batches_with_names():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = network()

        def forward(self, x):
            return self.inside(x)

    model = Named()
    batches = [{"x": x, "label": y} for x, y in VAL_BATCHES]
    runner = InferenceRunner(batches, top(1, "error"))
    run = fit(runner, model=model)
    assert run.metrics["error"] == error_of(model, *VAL)
    by_hand = InferenceRunner(batches, top(1, "error"), forward=lambda batch: model.eval()(batch["x"]))
    assert own_loop(by_hand).metrics["error"] == run.metrics["error"]


def test_a_loop_can_run_inference_without_torch():
    """The model and the batches can be any objects."""
    right = InferenceRunner(
        (np.arange(7.0), np.arange(7) % 2), metrics={"right": lambda outputs, targets: outputs == targets}, batch_size=3
    )
    with Loop([right], model=lambda x: x % 2, **BARE) as run:
        for _ in run.epochs(1):
            pass
    assert run.metrics["right"] == 1.0


# Errors


@jobs
@pytest.mark.parametrize("empty", [list, lambda: DataLoader([], batch_size=2), lambda: iter(())])
def test_an_empty_dataset_raises(train, empty):
    with pytest.raises(BadLoop, match=r"^the validation data yielded no batch\.\n  check     that the loader is neither empty"):
        train(InferenceRunner(empty(), top(1, "error")))


def test_an_exhausted_generator_raises_in_the_second_epoch():
    with pytest.raises(BadLoop, match="yielded no batch") as raised:
        fit(InferenceRunner(iter(VAL_BATCHES), top(1, "error")))
    assert "in callback InferenceRunner(error) at on_epoch_end (step 8, rank 0)" in raised.value.__notes__


@jobs
def test_the_error_for_a_missing_output_lists_the_outputs(train):
    forward = {"forward": lambda batch: {"logits": batch[0], "size": 3}}
    with pytest.raises(MissingOutput, match=r"ClassificationError\(e\) reads 'wrong', .*\n  known     logits, size"):
        train(InferenceRunner([VAL], ClassificationError("wrong", "e"), **forward))


def test_a_missing_model_raises_before_training():
    message = "InferenceRunner(error) has no model to run.\n  give      forward=, or model= to the Loop"
    with pytest.raises(CompileError, match=re.escape(message)), Loop([InferenceRunner([VAL], top(1, "error"))], **BARE):
        pass


def test_two_runners_that_write_the_same_metric_raise_before_training():
    message = "InferenceRunner(validation_error) and InferenceRunner(validation_error)#2 both write 'validation_error'."
    with pytest.raises(CompileError, match=re.escape(message)):
        fit(InferenceRunner([VAL], ClassificationError()), InferenceRunner([TEST], ClassificationError()))


@pytest.mark.parametrize(
    ("given", "options", "kind", "message"),
    [
        ((), {}, ValueError, "InferenceRunner has nothing to measure.\n  give      inferencers, or metrics={name: metric}"),
        ([top(1, "a"), top(2, "a")], {}, ValueError, "'a' is measured twice.\n  give      one of the two another name"),
        (top(1, "a"), {"metrics": {"a": Accuracy()}}, ValueError, "'a' is measured twice."),
        ([Accuracy()], {}, TypeError, "Accuracy() is a metric without a name.\n  write     metrics={'val-name': metric}"),
        ({"acc": Accuracy()}, {}, TypeError, "infs must be a list of inferencers, got a mapping."),
        ([ClassificationError], {}, TypeError, "ClassificationError is a class, not an instance."),
        ("val-error", {}, TypeError, "'v' is not an inferencer: it has no reset, update, results, names."),
        (5, {}, TypeError, "5 is not an inferencer"),
        (
            (),
            {"metrics": {"acc": 3}},
            TypeError,
            "metrics['acc'] must be a function or a metric object, got 3.\n  give      a function",
        ),
        ((), {"metrics": {"acc": Accuracy}}, TypeError, "  give      Accuracy()"),
        ((), {"metrics": [Accuracy()]}, BadLoop, "metrics must map names to metrics, got list."),
        (top(1, "a"), {"forward": 3}, TypeError, "forward must be a function, got 3"),
        (
            top(1, "a"),
            {"batch_size": 3},
            BadLoop,
            "the items of a list are used as batches, so batch_size does not apply.",
        ),
    ],
)
def test_invalid_arguments_raise(given, options, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        InferenceRunner([VAL], given, **options)


@pytest.mark.parametrize(
    ("given", "message"), [(None, "None yields no batches"), (VAL, "needs a batch size"), ((1,), "got int")]
)
def test_data_that_yields_no_batches_raises(given, message):
    with pytest.raises(BadLoop, match=message):
        InferenceRunner(given, top(1, "error"))


def test_names_that_are_a_single_string_raise():
    class Sloppy(Largest):
        names = "largest"

    with pytest.raises(BadValue) as caught:
        InferenceRunner([VAL], Sloppy())
    assert str(caught.value) == (
        "Sloppy.names must be a tuple with the names of its results, got 'largest'.\n"
        '  write     names = ("val_sloppy",) in class Sloppy'
    )


def test_a_subclass_of_inferencer_must_set_its_names():
    class Count(Inferencer):
        def __init__(self, names=None):
            if names is not None:
                self.names = names

        def reset(self):
            self.seen = 0

        def update(self, run):
            self.seen += len(run.targets)

        def results(self, logged):
            return {self.names[0]: self.seen}

    assert fit(InferenceRunner([VAL], Count(("seen",)))).metrics["seen"] == len(VAL[0])
    with pytest.raises(BadValue, match=r"^Count.names must be a tuple with the names of its results, got None\."):
        InferenceRunner([VAL], Count())


# Signals, stops and resume


class Interrupts(Callback):
    """Press Ctrl-C in the validation pass of the given epoch."""

    def __init__(self, epoch=1):
        self.epoch, self.batches = epoch, 0

    def on_val_iter_end(self, run):
        self.batches += 1
        if run.epoch == self.epoch and run.batch_idx == 0:
            os.kill(os.getpid(), signal.SIGINT)


@jobs
def test_an_interrupted_pass_logs_nothing_and_readers_do_not_raise(train):
    class Quiet(Reader):
        def on_trigger(self, run):
            self.seen.append(run.metrics.observations("error"))

    class Ends(Callback):
        def on_run_end(self, run):
            self.metrics = set(run.metrics)

    interrupts, reader, ends = Interrupts(), Quiet("error"), Ends()
    with pytest.raises(KeyboardInterrupt):
        train(InferenceRunner(VAL_BATCHES, top(1, "error")), interrupts, reader, ends, epochs=5)
    assert interrupts.batches == 1
    assert reader.seen == [0]
    assert "error" not in ends.metrics


@pytest.mark.parametrize("when", [None, Every(steps=4)])
def test_with_a_saver_a_signal_lets_the_pass_finish_and_the_run_resumes_exactly(tmp_path, when):
    def callbacks():
        runner, saver = InferenceRunner(VAL_BATCHES, top(1, "error")), MinSaver("error")
        return [saver.when(when), runner.when(when)] if when is not None else [saver, runner]

    whole = fit(*callbacks(), epochs=3, workdir=tmp_path / "whole")
    interrupts = Interrupts(epoch=2)
    with pytest.raises(KeyboardInterrupt):
        fit(*callbacks(), interrupts, epochs=3, workdir=tmp_path / "cut")
    assert interrupts.batches == 2 * len(VAL_BATCHES)
    resumed = fit(*callbacks(), epochs=3, workdir=tmp_path / "cut")
    assert equal(weights(resumed), weights(whole))
    assert resumed.monitors.get_history("error") == whole.monitors.get_history("error")


@pytest.mark.parametrize("cut_at", [2, 5, 7, 10])
def test_a_resumed_run_repeats_the_order_of_all_loaders(tmp_path, cut_at, cut_off):
    """A loader of fit continues its order across validations; that of an InferenceRunner restarts it each time."""

    class Cuts(Callback):
        saves = True

        def __init__(self, at):
            self.at = at

        def on_train_iter_end(self, run):
            if run.step == self.at:
                raise cut_off
            run.save("each")

    def shuffled(part, seed):
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(TensorDataset(*part), batch_size=5, shuffle=True, generator=generator)

    def train(workdir, at=None):
        stats = ScalarStats("loss", prefix="steps")
        often = InferenceRunner(shuffled(VAL, 1), [stats, top(1, "error")]).when(Every(steps=3))
        rarely = InferenceRunner(TEST, ScalarStats("loss", prefix="epochs"), batch_size=2)
        return fit(often, rarely, Cuts(at), val=shuffled(VAL, 2), epochs=3, workdir=tmp_path / workdir)

    whole = train("whole")
    with pytest.raises(cut_off):
        train("cut", cut_at)
    resumed = train("cut")
    assert equal(weights(resumed), weights(whole))
    for name in ("steps_loss", "error", "epochs_loss", "val_loss", "loss"):
        assert resumed.monitors.get_history(name) == whole.monitors.get_history(name)


def test_stop_run_inside_a_pass_ends_the_run():
    class Stops(Callback):
        def on_val_iter_end(self, run):
            raise StopRun("seen enough")

    model = network()
    run = fit(InferenceRunner(VAL_BATCHES, top(1, "error")), Stops(), model=model, epochs=5)
    assert (run.epoch, run.step) == (1, 4)
    assert "error" not in run.metrics


def test_stop_epoch_inside_a_pass_keeps_the_batches_so_far():
    class Limits(Callback):
        def on_val_iter_end(self, run):
            if run.batch_idx == 1:
                run.stop_epoch()

    model = network()
    run = fit(InferenceRunner(VAL_BATCHES, top(1, "error")), Limits(), model=model)
    assert run.metrics["error"] == error_of(model, VAL[0][:20], VAL[1][:20])
    assert run.epoch_complete


def test_a_missing_result_raises_when_no_signal_was_received():
    class Nothing(Largest):
        def results(self, logged):
            return {}

    with pytest.raises(MissingMetric, match=r"which InferenceRunner\(largest\) declares but did not log"):
        fit(Reader("largest"), InferenceRunner([VAL], Nothing()))


# Reuse


def test_a_runner_can_be_reused_and_pickled():
    runner = InferenceRunner(VAL_BATCHES, [top(1, "error"), ScalarStats("loss")], metrics={"acc": Accuracy()})
    again = pickle.loads(pickle.dumps(runner))
    first, second, third = (dict(fit(one).metrics) for one in (runner, runner, again))
    assert first == second == third


def test_a_runner_can_be_part_of_a_pipeline():
    run = fit(CallbackPipeline([InferenceRunner(VAL_BATCHES, top(1, "error"))]))
    assert len(run.monitors.get_history("error")) == 2


def test_validate_and_predict_do_not_trigger_a_runner():
    model = network()
    runner = Runner(
        model, None, nn.CrossEntropyLoss(), callbacks=[InferenceRunner(VAL_BATCHES, top(1, "error"))], device="cpu", **BARE
    )
    assert set(runner.validate([VAL])) == {"val_loss"}
    assert len(runner.predict([VAL[0]])) == 1
