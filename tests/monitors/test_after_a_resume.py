"""A run that was cut off and gone on with leaves the records of one that was not, each of them once."""

from __future__ import annotations

import copy

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hookpoint import Callback, Every, LambdaCallback
from hookpoint.callbacks import ModelSaver, MovingAverageSummary
from hookpoint.core.loop import Loop
from hookpoint.core.store import Checkpoint, Saved
from hookpoint.monitors import JSONWriter, TFEventWriter, read_scalars

EPOCHS, BATCHES = 2, 5
SCHEDULES = {Every(steps=1): 1, Every(steps=3): 3, Every(epochs=1): BATCHES}  # with the step of the first checkpoint
CUTS = [(save, cut_at) for save, first in SCHEDULES.items() for cut_at in range(first + 1, EPOCHS * BATCHES + 1)]


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


class Measures(Callback):
    """Validate now and then inside an epoch, and log between passes."""

    def on_trigger(self, run):
        for batch in run.batches([0.25, 0.5], mode="val"):
            run.log(inner=batch * run.step)

    def on_epoch_end(self, run):
        run.log(between=run.step / 3)


def train(workdir, disk, *, save, cut_at=None):
    """Train to the end, or until the run is cut off in the middle of an iteration."""
    measures = Measures().when(Every(steps=3))
    callbacks = [measures, ModelSaver().when(save), MovingAverageSummary(), JSONWriter(), TFEventWriter()]
    with Loop(callbacks, workdir=workdir, store=disk, log_every=2) as run:
        for epoch in run.epochs(EPOCHS):
            for batch in run.batches(range(BATCHES)):
                run.log(loss=(batch + 1) / (7 * epoch))
                if run.current_iteration == cut_at:
                    raise Cut
            for batch in run.batches(range(2), mode="val"):
                run.log(loss=batch / epoch)


def records(workdir):
    return [{key: value for key, value in row.items() if key != "time"} for row in read_scalars(workdir / "scalars.jsonl")]


def curves(workdir):
    events = EventAccumulator(str(workdir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: sorted(curve) for tag, curve in found.items()}  # files of one second are read in any order


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    train(folder, Disk(), save=Every(epochs=1))
    return folder


def test_the_records_are_worth_comparing(whole):
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
def test_each_record_is_there_once_wherever_the_run_was_cut_off(tmp_path, whole, save, cut_at):
    disk = Disk()
    with pytest.raises(Cut):
        train(tmp_path, disk, save=save, cut_at=cut_at)
    train(tmp_path, disk, save=save)
    assert records(tmp_path) == records(whole)
    assert curves(tmp_path) == curves(whole)


def test_each_record_is_there_once_after_many_resumes(tmp_path, whole):
    disk = Disk()
    for cut_at in (4, 5, 4, 7, 8, 7, 10, 10):
        with pytest.raises(Cut):
            train(tmp_path, disk, save=Every(steps=3), cut_at=cut_at)
    train(tmp_path, disk, save=Every(steps=3))
    assert records(tmp_path) == records(whole)
    assert curves(tmp_path) == curves(whole)


def test_a_moving_average_goes_on_to_the_last_bit(tmp_path, whole):
    disk = Disk()
    with pytest.raises(Cut):
        train(tmp_path, disk, save=Every(steps=1), cut_at=6)
    train(tmp_path, disk, save=Every(steps=1))
    averages = [[row["loss/ema"] for row in records(folder) if "loss/ema" in row] for folder in (tmp_path, whole)]
    assert averages[0] == averages[1]
    assert len(set(averages[0])) == 5


def test_events_tell_what_really_happened(tmp_path):
    disk = Disk()
    with pytest.raises(Cut):
        train(tmp_path, disk, save=Every(steps=3), cut_at=5)
    train(tmp_path, disk, save=Every(steps=3))
    events = [row["event"] for row in read_scalars(tmp_path / "events.jsonl")]
    assert events.count("exception") == 1
    assert events.index("save") < events.index("exception") < len(events) - events[::-1].index("save")


def test_what_is_logged_on_the_way_back_is_not_logged_twice(tmp_path):
    def logs(run):
        run.log(begun=run.epoch)
        run.put_scalar("put", 1.0)

    disk = Disk()

    def go(cut_at=None):
        callbacks = [LambdaCallback(on_epoch_begin=logs), ModelSaver().when(Every(steps=2)), JSONWriter()]
        with Loop(callbacks, workdir=tmp_path, store=disk) as run:
            for _ in run.epochs(2):
                for _ in run.batches(range(4)):
                    if run.current_iteration == cut_at:
                        raise Cut

    with pytest.raises(Cut):
        go(cut_at=4)
    go()
    assert [(row["step"], row["begun"]) for row in records(tmp_path) if "begun" in row] == [(0, 1), (4, 2)]
