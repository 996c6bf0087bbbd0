from __future__ import annotations

import pytest

import hookpoint
from hookpoint import Every, LambdaCallback
from hookpoint.callbacks import ModelSaver
from hookpoint.core.loop.loop import Loop
from hookpoint.monitors import History

WHOLE = {
    "rate": [1.0, 1 / 2, 1 / 3, 1 / 4],
    "loss": [2.0, 3.0, 4.0, 5.0],
    "val_loss": [1 / 4, 1 / 8],
}


def rounded(history):
    return {name: pytest.approx(values) for name, values in history.items()}


def test_each_epoch_is_appended_to_the_lists(train_validated):
    history = History()
    train_validated(history)
    assert history.epoch == [1, 2, 3, 4]
    assert history.history == rounded(WHOLE)


def test_a_fresh_run_has_new_lists(train_validated):
    history = History()
    train_validated(history)
    before = history.history
    train_validated(history, epochs=2)
    assert history.epoch == [1, 2]
    assert history.history["loss"] == [2.0, 3.0]
    assert before == rounded(WHOLE)


@pytest.mark.parametrize("save", [Every(steps=1), Every(steps=2), Every(epochs=1)], ids=str)
@pytest.mark.parametrize("cut_at", range(4, 13))
def test_a_resumed_run_continues_the_lists(train_validated, cut_off, disk, save, cut_at):
    with pytest.raises(cut_off):
        train_validated(History(), cut_at=cut_at, save=save, store=disk)
    history = History()
    train_validated(history, save=save, store=disk)
    assert history.epoch == [1, 2, 3, 4]
    assert history.history == rounded(WHOLE)


def test_an_epoch_left_early_is_appended():
    history = History()
    with Loop([history]) as run:
        for _ in run.epochs(2):
            for batch in run.batches(range(4)):
                run.log(loss=batch)
                if batch == 1:
                    break
    assert (history.epoch, history.history) == ([1, 2], {"loss": [0.5, 0.5]})


def test_a_validation_outside_a_run_is_not_appended(train_validated):
    history = History()
    train_validated(history, epochs=1)
    with Loop([history], run_points=False) as run:
        for _ in run.batches(range(2), mode="val"):
            run.log(loss=1.0)
    train_validated(history, epochs=1)
    assert history.history == {"rate": [1.0], "loss": [2.0]}


def test_values_after_the_last_epoch_are_appended(tmp_path):
    for _ in range(2):  # the second time, the run is finished and loads its state
        with hookpoint.Loop([ModelSaver()], monitors=[history := History()], workdir=tmp_path) as run:
            for epoch in run.epochs(2):
                run.log(loss=1 / epoch, accuracy=0.5)
            run.log(accuracy=0.75)
        assert (history.epoch, history.history) == ([1, 2], {"accuracy": [0.5, 0.5, 0.75], "loss": [1.0, 0.5]})


def test_values_of_an_epoch_whose_end_fails_are_left_out():
    def fail(run):
        if run.epoch == 2:
            raise ValueError("no metric")

    history = History()
    with pytest.raises(ValueError, match="no metric"), Loop([LambdaCallback(on_epoch_end=fail), history]) as run:
        for _ in run.epochs(3):
            run.log(loss=0.5)
    assert (history.epoch, history.history) == ([1], {"loss": [0.5]})


def test_values_after_the_last_epoch_stay_before_those_of_later_epochs(tmp_path):
    for epochs in (3, 4):
        history, saver = History(), ModelSaver().when(Every(epochs=2))
        with hookpoint.Loop([saver], monitors=[history], workdir=tmp_path) as run:
            for epoch in run.epochs(epochs):
                run.log(accuracy=epoch / 10)
            run.log(accuracy=epochs / 4)
    assert (history.epoch, history.history) == ([1, 2, 3, 4], {"accuracy": [0.1, 0.2, 0.3, 0.75, 0.4, 1.0]})
