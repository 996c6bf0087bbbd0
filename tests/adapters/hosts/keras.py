"""Keras 3 with the torch backend as a host of the conformance suite."""

from __future__ import annotations

import os

from tests.adapters.record import LEARNING_RATE, TRAIN, VAL, Net

from hookpoint import adapters

os.environ["KERAS_BACKEND"] = "torch"

NAME = "Keras"
PACKAGE = "keras"
KNOWS_LOADER = False  # Keras makes the loader itself, from arrays
CONTINUES = False  # a second fit starts from epoch 1
UNAVAILABLE = {"on_batch_fetch_begin", "on_batch_fetch_end", "on_iter_error", "on_iter_skip"}
CANNOT = {
    "validation in the middle of an epoch": "it validates only at the end of an epoch",
    "resume in an epoch": "it resumes only between epochs",
    "resume after the validation": "it resumes only between epochs",
}
IS_BITWISE = False  # its optimizer is not torch's


def model_of(fit):
    """Return a compiled model with the weights of Net."""
    import keras

    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
    model = keras.Model(inputs, outputs)
    if fit.fail_at is not None:
        net, step = Net(fit.fail_at), model.train_step

        def train_step(data):
            net(data[0])  # raises
            return step(data)

        model.train_step = train_step
    accumulate = fit.accumulate if fit.accumulate > 1 else None
    model.compile(keras.optimizers.SGD(LEARNING_RATE, gradient_accumulation_steps=accumulate), loss="mse")
    return model


def fit(callbacks, fit):
    import keras
    import numpy as np

    model, path = model_of(fit), fit.folder / "model.weights.h5"
    x, y = (np.concatenate([batch[part].numpy() for batch in TRAIN]) for part in (0, 1))
    val = VAL[0][0].numpy(), VAL[0][1].numpy()
    more = [keras.callbacks.BackupAndRestore(str(fit.folder / "backup"), delete_checkpoint=False)] if fit.is_killed else []
    with adapters.keras(callbacks, workdir=fit.state_folder) as adapter:
        if fit.predict:
            model.predict(val[0], batch_size=8, verbose=0, callbacks=[adapter])
            return model
        is_loaded = fit.resume_at is not None and not fit.is_killed
        if is_loaded:
            model.load_weights(path)
        options = {"batch_size": 4, "shuffle": False, "validation_data": val, "validation_batch_size": 8, "verbose": 0}
        epochs = 1 if fit.save_at and not fit.is_killed else fit.epochs
        for _ in range(1 + fit.second_fit):
            model.fit(x, y, epochs=epochs, initial_epoch=int(is_loaded), callbacks=[adapter, *more], **options)
    if fit.save_at:
        model.save_weights(path)
    return model
