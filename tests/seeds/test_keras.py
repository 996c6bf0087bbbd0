"""Keras callbacks run unchanged: methods take (epoch, logs) or (batch, logs), where batch is an index."""

from __future__ import annotations

import pytest
from torch import nn

from hookpoint import Callback, LambdaCallback, Runner, errors
from hookpoint.callbacks import ReduceLROnPlateau
from hookpoint.core.loop.loop import Loop


class Scalar:
    """A number on a device: it is read only when converted to a float."""

    shape = ()

    def __init__(self, value):
        self.value = value
        self.reads = 0

    def __float__(self):
        self.reads += 1
        return float(self.value)


def fit(callbacks, *, epochs=1, train=(1.0, 3.0), val=None, **given):
    """Do what `model.fit` does: train, validate and log a loss for each."""
    with Loop(callbacks, **given) as run:
        for epoch in run.epochs(epochs):
            for batch in run.batches(list(train)):
                run.log(loss=batch / epoch)
            if val is not None:
                for batch in run.batches(list(val), mode="val"):
                    run.log(loss=batch / epoch)
    return run


class EveryName(Callback):
    def __init__(self):
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append(("on_train_begin", dict(logs)))

    def on_train_end(self, logs=None):
        self.seen.append(("on_train_end", dict(logs)))

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("on_epoch_begin", epoch, dict(logs)))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("on_epoch_end", epoch, dict(logs)))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("on_train_batch_begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("on_train_batch_end", batch, dict(logs)))

    def on_test_begin(self, logs=None):
        self.seen.append(("on_test_begin",))

    def on_test_end(self, logs=None):
        self.seen.append(("on_test_end", dict(logs)))

    def on_test_batch_begin(self, batch, logs=None):
        self.seen.append(("on_test_batch_begin", batch))

    def on_test_batch_end(self, batch, logs=None):
        self.seen.append(("on_test_batch_end", batch, logs["val_loss"]))

    def on_predict_begin(self, logs=None):
        self.seen.append(("on_predict_begin",))

    def on_predict_end(self, logs=None):
        self.seen.append(("on_predict_end",))

    def on_predict_batch_begin(self, batch, logs=None):
        self.seen.append(("on_predict_batch_begin", batch))

    def on_predict_batch_end(self, batch, logs=None):
        self.seen.append(("on_predict_batch_end", batch))


def test_fit_calls_every_name_in_order():
    callback = EveryName()
    fit([callback], val=[10.0])
    assert callback.seen == [
        ("on_train_begin", {}),
        ("on_epoch_begin", 1, {}),
        ("on_train_batch_begin", 0),
        ("on_train_batch_end", 0, {"loss": 1.0}),
        ("on_train_batch_begin", 1),
        ("on_train_batch_end", 1, {"loss": 3.0}),
        ("on_test_begin",),
        ("on_test_batch_begin", 0),
        ("on_test_batch_end", 0, 10.0),
        ("on_test_end", {"loss": 2.0, "val_loss": 10.0}),
        ("on_epoch_end", 1, {"loss": 2.0, "val_loss": 10.0}),
        ("on_train_end", {"loss": 2.0, "val_loss": 10.0}),
    ]


def test_predict_calls_the_predict_names_in_order():
    callback = EveryName()
    with Loop([callback]) as run:
        for _ in run.batches(["a", "b"], mode="pred"):
            pass
    assert callback.seen[1:-1] == [
        ("on_predict_begin",),
        ("on_predict_batch_begin", 0),
        ("on_predict_batch_end", 0),
        ("on_predict_batch_begin", 1),
        ("on_predict_batch_end", 1),
        ("on_predict_end",),
    ]


@pytest.mark.parametrize("edge", ["begin", "end"])
def test_short_batch_names_are_called_in_training_only(edge):
    batches = []
    callback = LambdaCallback(**{f"on_batch_{edge}": lambda batch, logs=None: batches.append(batch)})
    fit([callback], train=[5.0, 6.0, 7.0], val=[9.0])
    assert batches == [0, 1, 2]


def test_batch_is_the_index_under_keras_names_and_the_data_under_ours():
    seen = []

    class Theirs(Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(("index", batch))

    class Ours(Callback):
        def on_train_iter_end(self, batch, batch_idx):
            seen.append(("data", batch, batch_idx))

    fit([Theirs(), Ours()], train=[5.0])
    assert seen == [("index", 0), ("data", 5.0, 0)]


def test_logs_become_floats_only_when_read():
    loss, other, seen = Scalar(2), Scalar(3), []

    class Read(Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["loss"])

    with Loop([Read()]) as run:
        for _ in run.batches([1]):
            run.log(loss=loss, other=other)
        assert other.reads == 0
    assert seen == [2.0]
    assert type(seen[0]) is float


def test_a_missing_name_in_logs_raises():
    class Wrong(Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["accuracy"]

    with pytest.raises(errors.MissingMetric, match=r"there is no metric 'accuracy'.\n  known     loss"):
        fit([Wrong()])


def test_logs_get_returns_none_for_a_missing_name():
    seen = []

    class Careful(Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((logs.get("loss"), logs.get("accuracy")))

    fit([Careful()])
    assert seen == [(2.0, None)]


def test_a_user_written_reduce_lr_on_plateau_works():
    class Optimizer:
        param_groups = [{"lr": 1.0}]  # noqa: RUF012

    class ReduceOnPlateau(Callback):
        def __init__(self, monitor, factor, patience, min_lr):
            self.monitor, self.factor, self.patience, self.min_lr = monitor, factor, patience, min_lr
            self.best, self.waited = float("inf"), 0

        def on_epoch_end(self, epoch, logs, run):
            self.waited += 1
            if logs[self.monitor] < self.best:
                self.best, self.waited = logs[self.monitor], 0
            if self.waited >= self.patience:
                run.hyper["learning_rate"] = max(run.hyper["learning_rate"] * self.factor, self.min_lr)
                self.waited = 0

    rates = []
    reduce_lr = ReduceOnPlateau(monitor="val_loss", factor=0.2, patience=2, min_lr=0.1)
    watch = LambdaCallback(on_epoch_end=lambda run: rates.append(run.hyper["learning_rate"]))
    with Loop([reduce_lr, watch], optimizer=Optimizer()) as run:
        for _ in run.epochs(6):
            for _ in run.batches([1.0], mode="val"):
                run.log(loss=1.0)
    assert rates == [1.0, 1.0, 0.2, 0.2, 0.1, 0.1]


def test_reduce_lr_on_plateau_reduces_the_rate_in_fit(digits, network):
    inputs, targets = digits
    reduce_lr = ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=5, min_lr=0.001)
    model = Runner(*network(), nn.CrossEntropyLoss(), callbacks=[reduce_lr], monitors=[], device="cpu")
    run = model.fit((inputs[:150], targets[:150]), (inputs[1000:], targets[1000:]), epochs=60, batch_size=50)

    rate, best, waited, expected = 0.1, float("inf"), 0, []
    for step, loss in run.monitors.get_history("val_loss"):
        expected.append((step, rate))
        waited = waited + 1 if loss >= best - 1e-4 else 0
        best = min(best, loss) if waited == 0 else best
        if waited >= 5 and rate > 0.001:
            rate, waited = max(rate * 0.2, 0.001), 0
    assert run.monitors.get_history("learning_rate") == expected
    assert sorted({rate for _, rate in expected}, reverse=True) == pytest.approx([0.1, 0.02, 0.004, 0.001])
    assert run.optimizer.param_groups[0]["lr"] == 0.001


def test_reduce_lr_on_plateau_raises_if_nothing_logs_its_metric(digits, network):
    """Keras only warns in each epoch."""
    inputs, targets = digits
    reduce_lr = ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=5, min_lr=0.001)
    model = Runner(*network(), nn.CrossEntropyLoss(), callbacks=[reduce_lr], monitors=[], device="cpu")
    with pytest.raises(errors.UnknownMetric, match=r"val_loss[^\n]*\n(.*\n)*.*learning_rate, loss"):
        model.fit((inputs[:150], targets[:150]), epochs=2, batch_size=50)


def test_two_spellings_of_one_point_in_a_class_raise():
    class Both(Callback):
        def on_batch_end(self, batch, logs=None): ...

        def on_train_batch_end(self, batch, logs=None): ...

    with pytest.raises(errors.TwoSpellings, match="Both defines on_train_iter_end twice"):
        Loop([Both()])


def test_lambda_callback_takes_keras_names():
    seen = []
    fit(
        [
            LambdaCallback(
                on_train_begin=lambda logs: seen.append("begin"),
                on_epoch_end=lambda epoch, logs: seen.append((epoch, logs["loss"])),
                on_train_end=lambda logs: seen.append("end"),
            )
        ]
    )
    assert seen == ["begin", (1, 2.0), "end"]


def test_a_callback_has_model_and_trainer_during_a_run_only():
    class Looks(Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((self.model, self.trainer.epoch))

    seen, model, looks = [], object(), Looks()
    with Loop([looks], model=model) as run:
        for _ in run.epochs(1):
            pass
    assert seen == [(model, 1)]
    with pytest.raises(errors.OutsideRun, match=r"Looks.model exists only during a run"):
        looks.model  # noqa: B018
