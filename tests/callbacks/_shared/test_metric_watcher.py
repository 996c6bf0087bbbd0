from __future__ import annotations

import pytest

from hookpoint import CallbackPipeline, Every
from hookpoint.callbacks import ModelSaver, PeriodicTrigger
from hookpoint.callbacks._shared.metric_watcher import MetricWatcher
from hookpoint.core.errors import MissingMetric
from hookpoint.core.loop.loop import Loop


class Watches(MetricWatcher):
    def __init__(self, monitor="score", **options):
        super().__init__(monitor, **options)
        self.taken = []

    def take(self, run, moment, value):
        self.taken.append((moment.step, value))


def test_each_value_is_taken_once(train_on_disk):
    watches = Watches()
    train_on_disk([watches], [{"score": 1.0}, {}, {"score": 1.0}, {"other": 2.0}])
    assert watches.taken == [(3, 1.0), (9, 1.0)]


def test_values_of_epochs_that_end_with_a_break_are_taken():
    watches = Watches()
    with Loop([watches]) as run:
        for epoch in run.epochs(3):
            for _ in run.batches(range(5)):
                if run.batch_idx == 1:
                    break
            run.log(score=epoch)
    assert watches.taken == [(2, 1.0), (4, 2.0), (6, 3.0)]


@pytest.mark.parametrize(
    "scheduled",
    [
        lambda watches: watches.when(Every(steps=3)),
        lambda watches: CallbackPipeline([watches]).when(Every(steps=3)),
        lambda watches: PeriodicTrigger(watches, every_k_steps=3),
    ],
    ids=["own", "pipeline", "PeriodicTrigger"],
)
def test_with_a_schedule_values_are_taken_when_it_is_due(scheduled):
    watches = Watches()
    with Loop([scheduled(watches)]) as run:
        for epoch in run.epochs(2):
            for _ in run.batches(range(5)):
                if run.batch_idx == 1:
                    break
            run.log(score=epoch)
    assert watches.taken == [(2, 1.0)]


def test_values_logged_within_an_epoch_are_taken():
    watches = Watches("val_score").when(Every(steps=2))
    with Loop([watches]) as run:
        for _ in run.batches(range(6)):
            for _ in run.batches(range(2), mode="val"):
                run.log(score=run.step)
    assert watches.taken == [(1, 1.0), (3, 3.0), (5, 5.0)]


def test_a_resumed_run_takes_no_value_twice(train_on_disk):
    train_on_disk([Watches(), ModelSaver()], [{"score": 1.0}])
    again = Watches()
    train_on_disk([again, ModelSaver()], [{"score": 1.0}, {}, {"score": 3.0}])
    assert again.taken == [(9, 3.0)]


def test_a_second_run_starts_from_scratch(train_on_disk, new_disk):
    watches = Watches()
    train_on_disk([watches], [{"score": 1.0}, {"score": 2.0}])
    train_on_disk([watches], [{"score": 3.0}], store=new_disk())
    assert watches.taken == [(3, 1.0), (6, 2.0), (3, 3.0)]


def test_a_metric_that_is_never_logged_raises(train_on_disk):
    with pytest.raises(MissingMetric, match=r"^Watches\(score\) reads 'score', which nothing has logged"):
        train_on_disk([Watches()], [{}, {}])


@pytest.mark.parametrize("metric", ["", None, 3])
def test_an_invalid_metric_name_raises(metric):
    with pytest.raises(ValueError, match="is not the name of a metric"):
        Watches(metric)
