from __future__ import annotations

import math

import pytest
import torch

from hookpoint import Callback, Loop
from hookpoint.callbacks import TopKSaver
from hookpoint.core.errors import MissingMetric

VALUES = [0.5, 0.9, 0.1, math.nan, 0.7, 0.7, 0.8]


def scores(values):
    return [{"acc": value} for value in values]


@pytest.mark.parametrize(
    ("mode", "k", "asked", "kept"),
    [
        ("max", 1, [3, 6], [6]),
        ("max", 2, [3, 6, 15, 21], [6, 21]),
        ("max", 3, [3, 6, 9, 15, 18, 21], [6, 15, 21]),
        ("auto", 2, [3, 6, 15, 21], [6, 21]),
        ("min", 2, [3, 6, 9], [3, 9]),
    ],
)
def test_the_k_best_checkpoints_are_kept(train_on_disk, disk, mode, k, asked, kept):
    train_on_disk([TopKSaver("acc", k, mode)], scores(VALUES))
    assert [step for step, tags in disk.saved if "top-acc" in tags] == asked
    assert disk.kept("top-acc") == kept


def test_the_default_keeps_the_three_smallest_values():
    saver = TopKSaver("loss")
    assert (saver.top.k, saver.top.mode) == (3, "min")


def test_a_resumed_run_keeps_the_same_checkpoints_as_an_uninterrupted_run(train_on_disk, disk, new_disk):
    whole = new_disk()
    train_on_disk([TopKSaver("acc", 2, "max")], scores(VALUES), store=whole)
    for epochs in range(1, len(VALUES) + 1):
        train_on_disk([TopKSaver("acc", 2, "max")], scores(VALUES[:epochs]))
    assert disk.kept("top-acc") == whole.kept("top-acc") == [6, 21]


def test_a_resume_without_a_new_best_value_keeps_at_most_k_checkpoints(tmp_path):
    model, values = torch.nn.Linear(1, 1), [0.5, 0.6, 0.9, 0.7, 0.8]

    def kept(workdir, *several):
        for epochs in several:
            with Loop([TopKSaver("acc", 2, "max")], model=model, workdir=workdir, monitors=[], extra_callbacks=[]) as run:
                for epoch in run.epochs(epochs):
                    run.log(acc=values[epoch - 1])
        return sorted(path.name for path in (workdir / "checkpoints").iterdir())

    assert kept(tmp_path / "resumed", 3, 5) == kept(tmp_path / "whole", 5)


def test_the_tag_can_be_named_by_filename(train_on_disk, disk):
    train_on_disk([TopKSaver("acc", filename="models")], scores([1.0]))
    assert disk.saved[0] == (3, ["top-models", "best-models"])


def test_each_saved_value_is_an_event_with_its_place(train_on_disk):
    class Events(Callback):
        def __init__(self):
            self.top = []

        def on_records(self, records):
            self.top += [record.values["top"] for record in records if "top" in record.values]

    events = Events()
    train_on_disk([TopKSaver("acc", 2, "max"), events], scores([0.5, 0.9, 0.1, 0.7]))
    assert events.top == [
        {"metric": "acc", "value": 0.5, "place": 1},
        {"metric": "acc", "value": 0.9, "place": 1},
        {"metric": "acc", "value": 0.7, "place": 2},
    ]


def test_a_metric_that_is_never_logged_raises(train_on_disk):
    with pytest.raises(MissingMetric, match=r"^TopKSaver\(acc\) reads 'acc', which nothing has logged"):
        train_on_disk([TopKSaver("acc")], [{}, {}])


def test_a_new_run_forgets_the_ranking(train_on_disk, new_disk):
    saver = TopKSaver("acc", 1, "max")
    train_on_disk([saver], scores([5.0]))
    train_on_disk([saver], scores([1.0]), store=new_disk())
    assert saver.top.ranking == [(1.0, 3)]


@pytest.mark.parametrize(
    ("given", "message"), [({"k": 0}, "k must be an integer >= 1, got 0"), ({"mode": "best"}, "got 'best'")]
)
def test_invalid_arguments_raise(given, message):
    with pytest.raises(ValueError, match=message):
        TopKSaver("acc", **given)


def test_a_value_whose_save_failed_is_not_ranked(train_on_disk, disk):
    disk.fails = [False, False, True]
    saver = TopKSaver("acc", 2, "max")
    train_on_disk([saver], scores([0.1, 0.2, 0.9, 0.3]))
    assert saver.top.ranking == [(0.3, 12), (0.2, 6)]
    assert disk.kept("top-acc") == [6, 12]
