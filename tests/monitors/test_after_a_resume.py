"""A resumed run writes the same records as an uninterrupted run, each once."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookpoint import Callback, Every, LambdaCallback
from hookpoint.callbacks import ModelSaver, MovingAverageSummary
from hookpoint.monitors import JSONWriter, TFEventWriter, read_scalars

EPOCHS, BATCHES = 2, 5
SCHEDULES = {Every(steps=1): 1, Every(steps=3): 3, Every(epochs=1): BATCHES}  # with the step of the first checkpoint
CUTS = [(save, cut_at) for save, first in SCHEDULES.items() for cut_at in range(first + 1, EPOCHS * BATCHES + 1)]


class Measures(Callback):
    """Validate within epochs, and log between passes."""

    def on_trigger(self, run):
        for batch in run.batches([0.25, 0.5], mode="val"):
            run.log(inner=batch * run.step)

    def on_epoch_end(self, run):
        run.log(between=run.step / 3)


@pytest.fixture(scope="module")
def train_measured(train):
    """Train to the end, or until an interruption in the middle of an iteration."""

    def validate(run):
        for batch in run.batches(range(2), mode="val"):
            run.log(loss=batch / run.epoch)

    def go(workdir, disk, *, save, **given):
        measures = Measures().when(Every(steps=3))
        callbacks = [measures, ModelSaver().when(save), MovingAverageSummary(), JSONWriter(), TFEventWriter()]
        step = lambda run, batch: run.log(loss=(batch + 1) / (7 * run.epoch))  # noqa: E731
        options = {"epochs": EPOCHS, "batches": BATCHES, "step": step, "epoch_end": validate, "log_every": 2}
        train(callbacks, workdir=workdir, store=disk, **options, **given)

    return go


def records(workdir):
    return [{key: value for key, value in row.items() if key != "time"} for row in read_scalars(workdir / "scalars.jsonl")]


def curves(workdir):
    events = EventAccumulator(str(workdir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: sorted(curve) for tag, curve in found.items()}  # files of the same second are read in any order


@pytest.fixture(scope="module")
def whole(train_measured, new_disk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train_measured(folder, new_disk(), save=Every(epochs=1))
    return folder


def test_the_uninterrupted_run_has_all_kinds_of_records(whole):
    assert len(records(whole)) == 14
    assert {tag: len(curve) for tag, curve in curves(whole).items()} == {
        "loss": 5,
        "loss/ema": 5,
        "epoch/loss": 2,
        "val_loss": 2,
        "val_inner": 3,
        "between": 2,
    }


@pytest.mark.parametrize(("save", "cut_at"), CUTS, ids=str)
def test_each_record_is_written_once_after_an_interruption(train_measured, cut_off, disk, tmp_path, whole, save, cut_at):
    with pytest.raises(cut_off):
        train_measured(tmp_path, disk, save=save, cut_at=cut_at)
    train_measured(tmp_path, disk, save=save)
    assert records(tmp_path) == records(whole)
    assert curves(tmp_path) == curves(whole)


def test_each_record_is_written_once_after_many_resumes(train_measured, cut_off, disk, tmp_path, whole):
    for cut_at in (4, 5, 4, 7, 8, 7, 10, 10):
        with pytest.raises(cut_off):
            train_measured(tmp_path, disk, save=Every(steps=3), cut_at=cut_at)
    train_measured(tmp_path, disk, save=Every(steps=3))
    assert records(tmp_path) == records(whole)
    assert curves(tmp_path) == curves(whole)


def test_a_moving_average_resumes_bit_for_bit(train_measured, cut_off, disk, tmp_path, whole):
    with pytest.raises(cut_off):
        train_measured(tmp_path, disk, save=Every(steps=1), cut_at=6)
    train_measured(tmp_path, disk, save=Every(steps=1))
    averages = [[row["loss/ema"] for row in records(folder) if "loss/ema" in row] for folder in (tmp_path, whole)]
    assert averages[0] == averages[1]
    assert len(set(averages[0])) == 5


def test_events_of_interrupted_processes_are_kept(train_measured, cut_off, disk, tmp_path):
    with pytest.raises(cut_off):
        train_measured(tmp_path, disk, save=Every(steps=3), cut_at=5)
    train_measured(tmp_path, disk, save=Every(steps=3))
    events = [row["event"] for row in read_scalars(tmp_path / "events.jsonl")]
    assert events.count("exception") == 1
    assert events.index("save") < events.index("exception") < len(events) - events[::-1].index("save")


def test_values_logged_while_resuming_are_not_logged_twice(train, cut_off, disk, tmp_path):
    def logs(run):
        run.log(begun=run.epoch)
        run.put_scalar("put", 1.0)

    def go(**given):
        callbacks = [LambdaCallback(on_epoch_begin=logs), ModelSaver().when(Every(steps=2)), JSONWriter()]
        train(callbacks, epochs=2, batches=4, workdir=tmp_path, store=disk, **given)

    with pytest.raises(cut_off):
        go(cut_at=4)
    go()
    assert [(row["step"], row["begun"]) for row in records(tmp_path) if "begun" in row] == [(0, 1), (4, 2)]
