"""Fixtures for the tests of monitors: runs that log varied records."""

from __future__ import annotations

import pytest

from hookpoint.callbacks import ModelSaver


@pytest.fixture
def train_validated(train):
    """Train with a validation in every second epoch, so that a new name appears in epoch 2. `save` is the saver's schedule."""

    def begin(run):
        run.log(rate=1 / run.epoch)

    def step(run, batch):
        run.log(loss=float(batch + run.epoch))

    def end(run):
        if run.epoch % 2 == 0:
            for batch in run.batches(range(2), mode="val"):
                run.log(loss=batch / run.epoch)

    def go(callback, *, epochs=4, save=None, **given):
        savers = [] if save is None else [ModelSaver().when(save)]
        options = {"epoch_begin": begin, "step": step, "epoch_end": end, "log_every": 2}
        return train([callback, *savers], epochs=epochs, **options, **given)

    return go


@pytest.fixture
def train_tracked(train_public):
    """Train three epochs of four steps, or until `body(run)` ends the run. With `saves`, each epoch is saved."""

    def go(monitor, body=None, *, saves=True, epochs=3, **given):
        def step(run, batch):
            run.log(loss=(batch + 1) / run.epoch)
            if body is not None:
                body(run)

        callbacks = [monitor, *([ModelSaver()] if saves else [])]
        return train_public(callbacks, epochs=epochs, batches=4, step=step, log_every=2, **given)

    return go
