"""Unknown metric names that `fit` rejects before its first step, and names that it can check only later."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import hookpoint
from hookpoint import Callback, Every, LambdaCallback, MainCallback, log, on
from hookpoint import callbacks as cb
from hookpoint.core.errors import MissingMetric, UnknownMetric


def accuracy(outputs, targets):
    return (outputs - targets).abs().mean()


class Monitor(Callback):
    def on_records(self, records): ...


class Stopping(cb.EarlyStopping):
    """A user's subclass."""


def refused(runner, batches, *callbacks, metric="val_accurcy", val=True, **options):
    """Return the error of a fit with this callback, and check that nothing ran."""
    reader = cb.EarlyStopping(metric, mode="max")
    began = []
    options = {"metrics": {"accuracy": accuracy}, **options}
    one = runner(reader, *callbacks, **options)
    one.optimizer.register_step_pre_hook(lambda *given: began.append(given))
    with pytest.raises(UnknownMetric) as caught:
        one.fit(batches, batches if val else None, epochs=3)
    assert began == []
    return caught.value


def is_open(runner, batches, *callbacks, metric="val_accurcy", **options):
    """Return whether a fit with this callback fails only after its first epoch."""
    options = {"metrics": {"accuracy": accuracy}, **options}
    one = runner(cb.EarlyStopping(metric, mode="max"), *callbacks, **options)
    try:
        one.fit(batches, batches, epochs=3)
    except UnknownMetric:
        return False
    except MissingMetric as error:
        return "by the end of epoch 1" in str(error)
    pytest.fail("the metric is missing")


def test_an_unknown_metric_raises_with_a_suggestion(runner, batches):
    error = refused(runner, batches)
    assert str(error) == (
        "EarlyStopping(val_accurcy) reads 'val_accurcy', which nothing logs. Did you mean 'val_accuracy'?\n"
        "  known     accuracy, learning_rate, loss, val_accuracy, val_loss\n"
        "  log       it with run.log in a callback, or with hookpoint.log in the model"
    )
    assert (error.owner, error.name, error.meant) == ("EarlyStopping(val_accurcy)", "val_accurcy", "val_accuracy")


@pytest.mark.parametrize("metric", ["val_loss", "val_accuracy"])
def test_val_metrics_are_unknown_without_validation_data(runner, batches, metric):
    assert str(refused(runner, batches, metric=metric, val=False)) == (
        f"EarlyStopping({metric}) reads '{metric}', which nothing logs.\n"
        "  known     accuracy, learning_rate, loss\n"
        "  pass      validation data: fit(train, val, epochs=...)\n"
        "  log       it with run.log in a callback, or with hookpoint.log in the model"
    )


def test_names_that_differ_in_digits_are_not_suggested(runner, batches):
    error = refused(runner, batches, metric="val_top5", metrics={"top1": accuracy})
    assert error.meant is None


@pytest.mark.parametrize("metric", ["loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"])
def test_metrics_logged_by_the_runner_are_known(runner, batches, metric):
    run = runner(cb.EarlyStopping(metric, mode="max", patience=9), metrics={"accuracy": accuracy})
    assert run.fit(batches, batches, epochs=2).epoch == 2


@pytest.mark.parametrize(
    ("callback", "metric"),
    [
        (cb.TimeMonitor(data_time=True), "data_seconds"),
        (cb.EstimatedTimeLeft(), "time_left_seconds"),
        (cb.ThroughputTracker(), "Throughput (steps/sec)"),
        (cb.SimpleMovingAverage(["loss"], 100), "loss/SMA"),
        (cb.GradientStats(), "gradient/norm"),
        (cb.ReduceLROnPlateau("loss", param="momentum"), "momentum"),
        (cb.InferenceRunner([], metrics={"far": accuracy}).when(Every(epochs=9)), "far"),
    ],
)
def test_metrics_declared_by_built_in_callbacks_are_known(runner, batches, callback, metric):
    one = runner(cb.EarlyStopping(metric, mode="min", patience=9), callback)
    assert one.fit(batches, epochs=3).epoch == 3
    assert "known" in str(refused(runner, batches, callback, metric="other"))


@pytest.mark.parametrize(
    "callback",
    [
        type("Own", (Callback,), {"on_epoch_end": lambda self: None})(),
        Stopping("loss", patience=9),
        Monitor(),
        LambdaCallback(on_epoch_end=lambda: None),
        on("on_epoch_end")(lambda: None),
        cb.RunOp(lambda: None),
        cb.ActivationStats(""),
        cb.GradientStats(per_parameter=True),
        cb.HyperParamSetterWithFunc("learning_rate", lambda epoch, old: log("own", 1)),
        cb.ModuleHooks("", forward=lambda module, args, output: hookpoint.log("own", 1)),
    ],
)
def test_callbacks_with_user_code_may_log_any_name(runner, batches, callback, caplog):
    assert is_open(runner, batches, callback)
    assert "reads 'val_accurcy', which nothing logs; did you mean 'val_accuracy'?" in caplog.text


def test_built_in_callbacks_with_functions_that_do_not_log_add_no_names(runner, batches):
    refused(runner, batches, cb.HyperParamSetterWithFunc("learning_rate", lambda epoch, old: old))
    refused(runner, batches, cb.ModuleHooks("", forward=lambda module, args, output: None))


def test_a_main_callback_may_log_any_name(runner, batches):
    class Main(MainCallback):
        pass

    assert is_open(runner, batches, Main())
    assert is_open(runner, batches, main=lambda run: run.criterion(run.model(run.batch[0]), run.batch[1]), metrics={})


def test_a_function_added_to_the_runner_may_log_any_name(runner, batches):
    one = runner(cb.EarlyStopping("own", mode="max", patience=9))

    @one.on("on_epoch_end")
    def own(run):
        run.log(own=1)

    assert one.fit(batches, epochs=2).epoch == 2


# Code that uses hookpoint.log


class Plain(nn.Module):
    """Uses other functions named log."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.layer(inputs) + 0 * torch.log(inputs.abs().mean())


class Logs(Plain):
    def forward(self, inputs):
        hookpoint.log("own", inputs.mean())
        return super().forward(inputs)


class ByName(Plain):
    def forward(self, inputs):
        log("own", inputs.mean())
        return super().forward(inputs)


class Inherits(ByName):
    pass


class Imports(Plain):
    def forward(self, inputs):
        from hookpoint import log as put

        put("own", inputs.mean())
        return super().forward(inputs)


class ByRun(Plain):
    def forward(self, inputs):
        hookpoint.current_run().log(own=1)
        return super().forward(inputs)


def helper(value):
    return [log("own", one) for one in [value]]


class Helped(Plain):
    def forward(self, inputs):
        helper(inputs.mean())
        return super().forward(inputs)


class Keeps(Plain):
    def __init__(self):
        super().__init__()
        self.put = partial(log, "own")

    def forward(self, inputs):
        self.put(inputs.mean())
        return super().forward(inputs)


@pytest.mark.parametrize("kind", [Logs, ByName, Inherits, Imports, ByRun, Helped, Keeps])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_that_uses_log_may_log_any_name(runner, batches, kind, wrapped):
    model = nn.Sequential(nn.Identity(), kind()) if wrapped else kind()
    assert is_open(runner, batches, model=model)
    reader = cb.EarlyStopping("val_own", mode="max", patience=9)
    assert runner(reader, model=kind()).fit(batches, batches, epochs=2).epoch == 2


def test_a_model_that_uses_another_log_adds_no_names(runner, batches):
    refused(runner, batches, model=Plain())


def test_a_hook_on_a_module_may_log_any_name(runner, batches):
    model = Plain()
    model.layer.register_forward_hook(lambda module, args, output: log("own", output.mean()))
    assert is_open(runner, batches, model=model)


def test_a_criterion_and_a_metric_may_log_any_name(runner, batches):
    def criterion(outputs, targets):
        log("own", outputs.mean())
        return nn.functional.mse_loss(outputs, targets)

    class Criterion(nn.Module):
        def forward(self, outputs, targets):
            return criterion(outputs, targets)

    def metric(outputs, targets):
        hookpoint.log("own", 1.0)
        return accuracy(outputs, targets)

    assert is_open(runner, batches, criterion=criterion)
    assert is_open(runner, batches, criterion=Criterion())
    assert is_open(runner, batches, metrics={"accuracy": metric})


def test_a_loader_may_log_any_name(runner, batches):
    def data():
        for batch in batches:
            log("own", 1.0)
            yield batch

    class Loader:
        def __iter__(self):
            return data()

    assert is_open(runner, Loader())


# When validation comes later


@pytest.mark.parametrize("every", [Every(epochs=3), Every(steps=12)])
def test_a_val_metric_counts_as_missing_only_after_the_first_validation(runner, batches, every):
    def fit(metric):
        own = LambdaCallback(on_epoch_end=lambda: None)
        one = runner(cb.EarlyStopping(metric, mode="min", patience=9), own, metrics={"accuracy": accuracy})
        return one.fit(batches, batches, epochs=5, validate_every=every)

    assert fit("val_accuracy").epoch == 5
    with pytest.raises(MissingMetric, match="by the end of epoch 3"):
        fit("val_accurcy")


def test_a_resumed_run_remembers_which_metrics_were_logged(runner, batches, tmp_path):
    def fit(epochs, *readers):
        own = LambdaCallback(on_epoch_end=lambda run: run.log(own=1) if run.epoch == 1 else None)
        one = runner(*readers, cb.ModelSaver(), own, workdir=tmp_path)
        return one.fit(batches, epochs=epochs).epoch

    assert fit(1, cb.StopAtThreshold("own", 9, "max")) == 1
    assert fit(4, cb.StopAtThreshold("own", 9, "max")) == 4
    with pytest.raises(MissingMetric, match="by the end of epoch 5"):
        fit(9, cb.StopAtThreshold("own", 9, "max"), cb.StopAtThreshold("other", 9, "max"))
