from __future__ import annotations

import copy

import pytest

from hookpoint import Every
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop import Loop
from hookpoint.core.store import Checkpoint, Saved
from hookpoint.monitors import History


class Cut(BaseException):
    """The run is cut off."""


class Disk:
    """A store that outlives its runs, and holds the newest checkpoint."""

    def __init__(self):
        self.newest = None

    def open(self, resume, identity):
        return None if self.newest is None else Checkpoint("disk", copy.deepcopy(self.newest))

    def write(self, state, *, step, elapsed, request):
        self.newest = copy.deepcopy(state)
        return Saved("disk", step, list(request.tags))

    def check(self, state): ...

    def collect(self, *, wait=False):
        return []

    def close(self): ...


def train(history, *, epochs=4, cut_at=None, save=None, disk=None):
    savers = [] if disk is None else [ModelSaver().when(save)]
    with Loop([history, *savers], log_every=2, store=disk) as run:
        for epoch in run.epochs(epochs):
            run.log(rate=1 / epoch)
            for batch in run.batches(range(3)):
                run.log(loss=(batch + 1) / epoch)
                if run.current_iteration == cut_at:
                    raise Cut
            if epoch % 2 == 0:
                for batch in run.batches(range(2), mode="val"):
                    run.log(loss=batch / epoch)
    return history


WHOLE = {
    "rate": [1.0, 1 / 2, 1 / 3, 1 / 4],
    "loss": [2.0, 1.0, 2 / 3, 1 / 2],
    "val_loss": [1 / 4, 1 / 8],
}


def rounded(history):
    return {name: pytest.approx(values) for name, values in history.items()}


def test_each_epoch_is_in_the_lists():
    history = train(History())
    assert history.epoch == [1, 2, 3, 4]
    assert history.history == rounded(WHOLE)


def test_a_fresh_run_starts_anew_and_leaves_the_old_lists_alone():
    history = train(History())
    before = history.history
    train(history, epochs=2)
    assert history.epoch == [1, 2]
    assert history.history["loss"] == [2.0, 1.0]
    assert before == rounded(WHOLE)


@pytest.mark.parametrize("save", [Every(steps=1), Every(steps=2), Every(epochs=1)], ids=str)
@pytest.mark.parametrize("cut_at", range(4, 13))
def test_a_resumed_run_goes_on_with_it(save, cut_at):
    disk = Disk()
    with pytest.raises(Cut):
        train(History(), cut_at=cut_at, save=save, disk=disk)
    history = train(History(), save=save, disk=disk)
    assert history.epoch == [1, 2, 3, 4]
    assert history.history == rounded(WHOLE)


def test_an_epoch_that_was_cut_short_counts():
    history = History()
    with Loop([history]) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(4)):
                run.log(loss=batch)
                if batch == 1:
                    break
    assert (history.epoch, history.history) == ([1, 2], {"loss": [0.5, 0.5]})


def test_a_validation_that_is_no_part_of_a_run_is_left_out():
    history = train(History(), epochs=1)
    with Loop([history], run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    train(history, epochs=1)
    assert history.history == {"rate": [1.0], "loss": [2.0]}
