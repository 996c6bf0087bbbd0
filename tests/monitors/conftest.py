"""What the tests of monitors share: runs whose records are worth looking at."""

from __future__ import annotations

import pytest

from hookpoint.callbacks import ModelSaver


@pytest.fixture
def train_validated(train):
    """Train with a validation in every second epoch, so that a name comes in the second one. `save` is when to save."""

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
    """Bring a run to three epochs of four steps, or to where `body(run)` ends it. `saves` is whether each is saved."""

    def go(monitor, body=None, *, saves=True, epochs=3, **given):
        def step(run, batch):
            run.log(loss=(batch + 1) / run.epoch)
            if body is not None:
                body(run)

        callbacks = [monitor, *([ModelSaver()] if saves else [])]
        return train_public(callbacks, epochs=epochs, batches=4, step=step, log_every=2, **given)

    return go
