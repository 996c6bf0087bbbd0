"""Keras 3 as a host: tests beyond the conformance suite."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext

import pytest

os.environ["KERAS_BACKEND"] = "torch"
pytest.importorskip("keras", reason="Keras is not installed: make test-adapters")

import keras
import numpy as np
import torch
from tests.adapters.hosts.keras import model_of
from tests.adapters.record import TRAIN, VAL
from tests.adapters.scripts import Fit

from hookpoint import Callback, adapters, on
from hookpoint import callbacks as cb
from hookpoint.core.loop.host import NotUnderHost
from hookpoint.storage.checkpoint.layout import HOST_STATE
from hookpoint.storage.checkpoint.state_bytes import MAGIC

X, Y = (np.concatenate([batch[part].numpy() for batch in TRAIN]) for part in (0, 1))
DATA = {"x": X, "y": Y, "batch_size": 4, "shuffle": False, "verbose": 0}
VALIDATION = {"validation_data": tuple(part.numpy() for part in VAL[0]), "validation_batch_size": 8}


def test_metrics_equal_keras_history(tmp_path):
    seen = []
    note = on("on_epoch_end")(lambda run: seen.append((run.metrics["loss"], run.metrics["val_loss"], run.metrics["mae"])))
    model = model_of(Fit())
    model.compile(keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    history = model.fit(**DATA, **VALIDATION, epochs=3, callbacks=[adapters.keras([note])]).history
    for number, row in enumerate(seen):
        assert row == pytest.approx([history[name][number] for name in ("loss", "val_loss", "mae")], abs=1e-6)
    assert len(seen) == 3


def test_callbacks_see_the_batch_the_outputs_and_the_loss():
    seen = []

    class Look(Callback):
        def on_train_iter_begin(self, run):
            seen.append(run.batch[0].shape[0])

        def on_train_iter_end(self, run):
            expected = torch.nn.functional.mse_loss(run.outputs, run.batch[1])
            seen.append(float(run.loss) == pytest.approx(float(expected)))

        def on_val_iter_end(self, run):
            seen.append(tuple(run.outputs.shape))

    model_of(Fit()).fit(**DATA, **VALIDATION, callbacks=[adapters.keras([Look()])])
    assert seen == [4, True, 4, True, 2, True, (8, 1)]


@pytest.mark.parametrize("fails", [None, "callback", "host"])
def test_the_model_and_signal_handlers_are_restored(fails):
    model = model_of(Fit(fail_at=1 if fails == "host" else None))
    before = dict(vars(model)), dict(vars(model.optimizer)), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def fail(run):
        if fails == "callback" and run.iteration == 2:
            raise ValueError("a callback fails")

    with pytest.raises(ValueError, match=f"{fails} fails") if fails else nullcontext():  # noqa: SIM117
        with adapters.keras([on("on_train_iter_end")(fail), cb.GradientStats(every=1)]) as adapter:
            model.fit(**DATA, **VALIDATION, epochs=2, callbacks=[adapter])
    for name in ("train_step", "test_step", "compute_loss"):
        assert vars(model).get(name) is before[0].get(name)
    assert "apply" not in vars(model.optimizer)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before[2:]


def test_without_a_with_statement_the_next_fit_ends_a_failed_run():
    seen = []

    class Points(Callback):
        def on_exception(self, error):
            seen.append(str(error).partition("\n")[0])

        def on_run_begin(self):
            seen.append("begin")

        def on_run_end(self):
            seen.append("end")

    model, adapter = model_of(Fit(fail_at=1)), adapters.keras([Points()])
    with pytest.raises(ValueError, match="the host fails"):
        model.fit(**DATA, callbacks=[adapter])
    assert seen == ["begin"]  # the error of Keras did not reach the callbacks
    model_of(Fit()).fit(**DATA, callbacks=[adapter])
    assert seen == ["begin", "Keras ended the last run without an event.", "end", "begin", "end"]
    assert vars(model)["train_step"].__name__ == "train_step"  # the model's own method, not hookpoint's


def test_callbacks_can_set_the_learning_rate():
    model = model_of(Fit())
    setter = cb.ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0.25)])
    short = on("on_epoch_begin")(lambda run: rates.append(run.hyper["lr"]))
    rates = []
    model.fit(**DATA, epochs=2, callbacks=[adapters.keras([setter, short])])
    assert rates == [0.5, 0.25]
    assert float(model.optimizer.learning_rate) == 0.25


def test_the_state_file_has_hookpoints_encoding_and_matches_the_epoch(tmp_path, caplog):
    def fitted(initial, epochs):
        rows = []
        stop = cb.EarlyStopping("val_loss", min_delta=10.0, patience=3)
        note = on("on_epoch_end")(lambda run: rows.append((run.epoch, run.step)))
        adapter = adapters.keras([stop, note], workdir=tmp_path)
        model_of(Fit()).fit(**DATA, **VALIDATION, initial_epoch=initial, epochs=epochs, callbacks=[adapter])
        return rows

    assert fitted(0, 2) == [(1, 3), (2, 6)]
    assert (tmp_path / HOST_STATE).read_bytes().startswith(MAGIC)
    assert fitted(2, 9) == [(3, 9), (4, 12)]
    assert fitted(3, 9) == [(4, 12)]  # the previous epoch's state is kept too: Keras may be killed before it saves
    with caplog.at_level(logging.WARNING, "hookpoint"):
        assert fitted(7, 8) == [(8, 3)]  # the optimizer of a new model has not stepped
    assert "is from epoch 4, but Keras starts epoch 8" in caplog.text


def test_a_fit_that_resumes_without_a_workdir_warns(caplog):
    model_of(Fit()).fit(**DATA, initial_epoch=1, epochs=2, callbacks=[adapters.keras([cb.EarlyStopping("loss")])])
    assert "Keras starts epoch 2, but without workdir=, the state of hookpoint's callbacks was not saved" in caplog.text


def test_a_saver_writes_weights(tmp_path):
    model = model_of(Fit())
    model.fit(**DATA, **VALIDATION, callbacks=[adapters.keras([cb.MinSaver("val_loss")], workdir=tmp_path)])
    again = model_of(Fit())
    again.load_weights(tmp_path / "keras" / "best-val_loss.weights.h5")
    assert np.array_equal(again.get_weights()[0], model.get_weights()[0])
    with pytest.raises(NotUnderHost, match="needs a folder for its weights; pass workdir="):
        adapters.keras([cb.MinSaver("val_loss")])


def test_a_custom_train_step_fires_step_points():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            loss = ((self(x) - y) ** 2).mean()
            self.zero_grad()
            loss.backward()
            with torch.no_grad():
                self.optimizer.apply([value.value.grad for value in self.trainable_weights], self.trainable_weights)
            return {"loss": loss}

    seen = []

    class Points(Callback):
        def on_step_end(self, run):
            seen.append(run.step)

        def on_epoch_end(self, run):
            seen.append("loss" in run.metrics)

    model = Model()
    model.compile(keras.optimizers.SGD(0.05))
    model.fit(**DATA, callbacks=[adapters.keras([Points()])])
    assert seen == [1, 2, 3, True]


def test_a_compiled_step_cannot_fire_step_points():
    model = model_of(Fit())
    model.compile(keras.optimizers.SGD(0.05), loss="mse", jit_compile=True)
    with pytest.raises(NotUnderHost, match="Keras has no on_step_begin: its step is compiled: pass jit_compile=False"):
        model.fit(**DATA, callbacks=[adapters.keras([cb.GradientStats(every=1)])])


def test_evaluate_fires_validation_points():
    seen = []

    class Points(Callback):
        def on_run_begin(self):
            seen.append("run")

        def on_val_iter_end(self, run):
            seen.append(run.batch_idx)

        def on_val_epoch_end(self, run):
            seen.append("val_loss" in run.metrics)

    model_of(Fit()).evaluate(X, Y, batch_size=5, verbose=0, callbacks=[adapters.keras([Points()])])
    assert seen == [0, 1, True]


def test_unsupported_features_of_keras_raise():
    with pytest.raises(
        NotUnderHost, match=r"run\.stop_epoch\(\) does not work under Keras: it can only stop the whole training run"
    ):
        model_of(Fit()).fit(**DATA, callbacks=[adapters.keras([on("on_train_iter_end")(lambda run: run.stop_epoch())])])
    with pytest.raises(NotUnderHost, match="Keras has no on_batch_fetch_begin"):
        adapters.keras([on("on_batch_fetch_begin")(lambda run: None)])
