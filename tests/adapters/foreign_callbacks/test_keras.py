"""Keras's own callbacks behave the same in our Runner as in `model.fit`, given the same losses."""

from __future__ import annotations

import csv
import os

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed: make test-adapters")
np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")

from tests.adapters.foreign_callbacks.scripted import BATCHES, INPUTS, VALIDATION, Script, ours  # noqa: E402

from hookpoint import Loop, Runner  # noqa: E402
from hookpoint import callbacks as cb  # noqa: E402

NAN = float("nan")
LOSSES = [4.0, 2.0, 3.0, 1.0, 1.5, 1.25, 1.0, 1.0, 0.5, 0.5]
EVENTS = [
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"),
]


class ScriptedKeras(keras.Model):
    """A Keras model with the losses of a script."""

    def __init__(self, val, train=None):
        super().__init__()
        self.script = Script(val, train)
        self.scale = self.add_weight(shape=(1,), initializer="ones")

    @property
    def metrics(self):
        return []  # no metrics: the logs are the values of the steps

    def call(self, inputs):
        return inputs

    def train_step(self, data):
        return {"loss": self.script.next_train()}

    def test_step(self, data):
        return {"loss": self.script.next_val()}


def theirs(callbacks, val, *, train=None, rate=0.5):
    """Train with Keras and return the model."""
    model = ScriptedKeras(val, train)
    model.compile(optimizer=keras.optimizers.SGD(rate))
    inputs, validation = INPUTS.numpy(), VALIDATION.numpy()
    model.fit(
        *(inputs, inputs),
        validation_data=(validation, validation),
        epochs=len(val),
        batch_size=2,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return model


class NumberWeights(keras.callbacks.Callback):
    """Set the weights to the epoch number, and record the learning rates."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def on_epoch_begin(self, epoch, logs=None):
        self.model.set_weights([np.full(1, epoch, "float32")])

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))


def compare(make, names, val, **options):
    """Train with both; compare attributes of the callback, the final weights, and the learning rates of all batches."""
    pairs = []
    for train in (theirs, ours):
        callback, numbers = make(), NumberWeights()
        train([numbers, callback], val, **options)
        weights = [float(weight.reshape(())) for weight in callback.model.get_weights()]
        pairs.append(([getattr(callback, name) for name in names], weights, numbers.rates))
    (*expected, rates), (*got, our_rates) = pairs
    assert got == expected
    assert our_rates == pytest.approx(rates, rel=1e-6)  # a learning rate of Keras has 32 bits
    return our_rates


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"patience": 3, "min_delta": 0.75},
        {"patience": 1, "baseline": 3.5},
        {"patience": 1, "start_from_epoch": 4},
        {"patience": 2, "mode": "max"},
        {"patience": 2, "restore_best_weights": True},
        {"patience": 100, "restore_best_weights": True},
        {"patience": 2, "monitor": "loss"},
    ],
    ids=str,
)
def test_early_stopping_matches_keras(options):
    options = {"monitor": "val_loss", **options}
    names = ("wait", "best", "best_epoch", "stopped_epoch")
    compare(lambda: keras.callbacks.EarlyStopping(**options), names, LOSSES)


def test_early_stopping_sets_the_stop_reason():
    callback = keras.callbacks.EarlyStopping("val_loss", patience=2)
    run = ours([callback], LOSSES)
    assert (run.epoch, run.stop_reason) == (6, "EarlyStopping set model.stop_training")


@pytest.mark.parametrize(
    "options",
    [{"patience": 1}, {"patience": 2, "cooldown": 2}, {"patience": 1, "min_lr": 0.2, "factor": 0.5}, {"min_delta": 10}],
    ids=str,
)
def test_reduce_lr_on_plateau_matches_keras(options):
    options = {"monitor": "val_loss", "patience": 1, **options}
    rates = compare(lambda: keras.callbacks.ReduceLROnPlateau(**options), ("wait", "best", "cooldown_counter"), LOSSES)
    assert len(set(rates)) > 1


def test_learning_rate_scheduler_matches_keras():
    rates = compare(lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)), (), LOSSES[:4])
    assert rates == [rate for rate in (0.5, 0.25, 0.25 / 3, 0.0625 / 3) for _ in range(BATCHES)]


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_csv_logger_matches_keras(tmp_path):
    for train, name in ((theirs, "theirs"), (ours, "ours")):
        rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5**epoch)
        train([rates, keras.callbacks.CSVLogger(tmp_path / name)], LOSSES[:4])
    assert (tmp_path / "ours").read_text() == (tmp_path / "theirs").read_text()
    assert rows(tmp_path / "ours")[2] == {"epoch": "2", "learning_rate": "0.25", "loss": "3.0", "val_loss": "3.0"}


def test_csv_logger_in_a_loop_matches_keras(tmp_path):
    with Loop([keras.callbacks.CSVLogger(tmp_path / "ours")], extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches([1, 2]):
                run.log(loss=LOSSES[epoch - 1])
            for _ in run.batches([1], mode="val"):
                run.log(loss=LOSSES[epoch - 1])
    theirs([keras.callbacks.CSVLogger(tmp_path / "theirs")], LOSSES[:3])
    assert (tmp_path / "ours").read_text() == (tmp_path / "theirs").read_text()


def test_lambda_callback_gets_every_event_with_the_same_arguments():
    records = []
    for train in (theirs, ours):
        record = []

        def note(event, record=record):
            def called(*args, **kwargs):  # batches have the logs as a keyword, as in Keras
                logs = kwargs["logs"] if "_batch_" in event else args[-1]
                numbers = args if "_batch_" in event else args[:-1]
                record.append((event, *numbers, {name: value for name, value in logs.items() if name != "learning_rate"}))

            return called

        train([keras.callbacks.LambdaCallback(**{event: note(event) for event in EVENTS})], LOSSES[:3])
        records.append(record)
    assert records[0] == records[1]
    assert len(records[1]) == 2 + 3 * (2 + 2 * BATCHES + 4)


def test_batch_logs_are_the_running_mean():
    inputs = np.linspace(-1, 1, 10, dtype="float32").reshape(5, 2)
    targets = np.arange(5, dtype="float32").reshape(5, 1)
    net = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    net.build((None, 2))
    weights = net.get_weights()
    records = []
    for train in ("theirs", "ours"):
        record = []
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None, to=record: to.append(logs["loss"]))
        net.set_weights(weights)
        if train == "theirs":
            net.compile(keras.optimizers.SGD(0.1), "mse")
            net.fit(inputs, targets, batch_size=2, epochs=2, shuffle=False, verbose=0, callbacks=[note])
        else:
            loader = [(torch.tensor(inputs[at : at + 2]), torch.tensor(targets[at : at + 2])) for at in (0, 2, 4)]
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            criterion = torch.nn.functional.mse_loss
            Runner(net, optimizer, criterion, callbacks=[note], extra_callbacks=[], monitors=[]).fit(loader, epochs=2)
        records.append(record)
    assert records[1] == pytest.approx(records[0], rel=1e-6)


def test_terminate_on_nan_matches_keras():
    ends = []
    for train in (theirs, ours):
        batches = []
        count = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs=None, batches=batches: batches.append(batch)
        )
        train([keras.callbacks.TerminateOnNaN(), count], LOSSES[:4], train=[4.0, NAN, 1.0, 1.0])
        ends.append(batches)
    assert ends[0] == ends[1] == [0, 1, 0]
    run = ours([keras.callbacks.TerminateOnNaN()], LOSSES[:4], train=[4.0, NAN, 1.0, 1.0])
    assert run.stop_reason == "TerminateOnNaN set model.stop_training"


def test_history_matches_keras_and_is_set_on_the_model():
    histories = []
    for train in (theirs, ours):
        callback = keras.callbacks.History()
        train([callback], LOSSES[:3])
        histories.append({name: values for name, values in callback.history.items() if name != "learning_rate"})
        assert callback.model.history is callback
    assert histories[0] == histories[1] == {"loss": LOSSES[:3], "val_loss": LOSSES[:3]}


# Resume


def resumed(make, tmp_path, after):
    """Train until epoch `after`, resume with new objects, and return the new callback and run."""
    ours([make(), cb.ModelSaver()], LOSSES, epochs=after, workdir=tmp_path)
    callback = make()
    return callback, ours([callback, cb.ModelSaver()], LOSSES, workdir=tmp_path, done=after)


@pytest.mark.parametrize("after", [1, 3, 5])
def test_early_stopping_continues_after_a_resume(tmp_path, after):
    def make():
        return keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.1)

    whole = make()
    run = ours([whole], LOSSES)
    callback, after_resume = resumed(make, tmp_path, after)
    assert after_resume.epoch == run.epoch == 6
    names = ("wait", "best", "best_epoch", "stopped_epoch", "min_delta")
    assert [getattr(callback, name) for name in names] == [getattr(whole, name) for name in names]


def test_early_stopping_restores_weights_from_before_the_resume(tmp_path):
    def train(epochs, done):
        stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
        return ours([NumberWeights(), stopping, cb.ModelSaver()], LOSSES, epochs=epochs, workdir=tmp_path, done=done)

    train(5, 0)
    assert train(10, 5).model.weight.item() == 3.0


def test_reduce_lr_on_plateau_continues_after_a_resume(tmp_path):
    def make():
        return keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, cooldown=2, factor=0.5, min_delta=0.75)

    whole = make()
    rate = ours([whole], LOSSES).hyper["learning_rate"]
    callback, run = resumed(make, tmp_path, 6)
    assert run.hyper["learning_rate"] == rate < 0.5
    assert (callback.wait, callback.cooldown_counter, callback.best) == (whole.wait, whole.cooldown_counter, whole.best)


def test_csv_logger_has_every_epoch_once_after_a_resume(tmp_path):
    ours([keras.callbacks.CSVLogger(tmp_path / "whole")], LOSSES[:5])
    ours([keras.callbacks.CSVLogger(tmp_path / "log"), cb.ModelSaver()], LOSSES[:5], epochs=3, workdir=tmp_path / "run")
    with open(tmp_path / "log", "a") as file:
        file.write("3,0.5,1.0,1.0\n")  # an epoch after the checkpoint, interrupted by a kill
    callback = keras.callbacks.CSVLogger(tmp_path / "log")
    ours([callback, cb.ModelSaver()], LOSSES[:5], workdir=tmp_path / "run", done=3)
    assert (tmp_path / "log").read_text() == (tmp_path / "whole").read_text()
    assert not callback.append


# With a Keras model


def test_a_keras_model_offers_its_own_attributes(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.build((None, 1))
    saver = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.weights.h5"), "val_loss", save_weights_only=True, save_best_only=True
    )
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    with Loop([saver, stopping], model=model, extra_callbacks=[], monitors=[]) as run:
        for epoch in run.epochs(4):
            for _ in run.batches([1]):
                run.log(val_loss=LOSSES[epoch - 1])
    assert run.stop_reason == "EarlyStopping set model.stop_training"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.weights.h5", "2.weights.h5"]
