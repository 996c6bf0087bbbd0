"""The best checkpoint, and the checkpoints that limits keep."""

from __future__ import annotations

import json

import pytest
import torch

from hookpoint import Every, Loop
from hookpoint.callbacks import (
    BackupAndRestore,
    CheckpointConfig,
    EarlyStopping,
    MaxSaver,
    MinSaver,
    ModelCheckpoint,
    ModelSaver,
    TopKSaver,
)

SCORES = (3.0, 1.0, 2.0, 4.0)


@pytest.fixture
def train_scores(train_public):
    """Train an epoch of five steps for each score."""

    def go(workdir, callbacks, scores=SCORES):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = [{"score": score} for score in scores]
        options = {"model": model, "optimizer": optimizer, "workdir": workdir}
        return train_public(callbacks, rows, batches=5, step=lambda run, batch: optimizer.step(), **options)

    return go


def steps(workdir):
    return sorted(path.name for path in (workdir / "checkpoints").glob("step-*"))


def manifest(workdir, name):
    return json.loads((workdir / "checkpoints" / name / "manifest.json").read_text())


def of(*steps):
    return [f"step-{step:08d}" for step in steps]


# Best checkpoints


@pytest.mark.parametrize(
    "callbacks",
    [
        [MinSaver("score")],
        [ModelCheckpoint(monitor="score")],
        [TopKSaver("score", k=2)],
        [EarlyStopping("score", patience=9, mode="min"), ModelSaver()],
        [ModelSaver(), EarlyStopping("score", patience=9, mode="min")],
        [EarlyStopping("score", patience=9, mode="min"), ModelSaver(max_to_keep=1)],
        [MinSaver("score"), TopKSaver("score"), EarlyStopping("score", patience=9, mode="min")],
        [TopKSaver("score"), MinSaver("score")],
        [TopKSaver("score"), TopKSaver("score", k=1, filename="score-1")],
    ],
)
def test_the_best_checkpoint_has_a_folder_and_its_value_is_in_the_manifest(train_scores, tmp_path, callbacks):
    train_scores(tmp_path, callbacks)
    found = manifest(tmp_path, "best-score")
    assert found == manifest(tmp_path, "step-00000010"), "no limit deletes it"
    assert "best-score" in found["tags"]
    assert found["measured"]["best-score"] == {
        "metric": "score",
        "mode": "min",
        "value": 1.0,
        "epoch": 2,
        "iteration": 10,
        "step": 10,
    }


def test_each_of_the_best_checkpoints_stores_its_value(train_scores, tmp_path):
    train_scores(tmp_path, [TopKSaver("score", k=2)])
    values = {name: manifest(tmp_path, name)["measured"].get("top-score", {}).get("value") for name in steps(tmp_path)}
    assert values == {"step-00000010": 1.0, "step-00000015": 2.0, "step-00000020": None}


def test_early_stopping_requests_no_checkpoint(train_scores, tmp_path):
    train_scores(tmp_path, [EarlyStopping("score", patience=9, mode="min"), ModelSaver().when(Every(epochs=3))])
    assert steps(tmp_path) == of(15, 20)
    assert not (tmp_path / "checkpoints" / "best-score").exists()


def test_early_stopping_works_without_a_workdir(train_scores):
    assert train_scores(None, [EarlyStopping("score", mode="min", patience=1)]).epoch == 3


def test_the_manifest_says_when_the_value_was_measured(tmp_path):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop([MinSaver("val_score")], model=model, optimizer=optimizer, workdir=tmp_path) as run:
        for _ in run.batches(range(6)):
            if run.batch_idx == 3:
                for _ in run.batches(range(1), mode="val"):
                    run.log(score=0.5)
            optimizer.step()
    found = manifest(tmp_path, "best-val_score")
    assert (found["step"], found["iteration"]) == (4, 4)
    measured = found["measured"]["best-val_score"]
    assert (measured["value"], measured["step"], measured["iteration"]) == (0.5, 3, 3)


def test_a_run_resumes_from_a_best_checkpoint_measured_within_an_iteration(tmp_path):
    def go(workdir, batches, **options):
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saver = MinSaver("val_score")
        with Loop([saver], model=model, optimizer=optimizer, workdir=workdir, **options) as run:
            for _ in run.epochs(1):
                for batch in run.batches([torch.full((1, 1), float(number)) for number in range(8)]):
                    if run.batch_idx % 2 == 0:
                        for _ in run.batches(range(1), mode="val"):
                            run.log(score=abs(4.0 - run.iteration))
                    optimizer.zero_grad()
                    model(batch).sum().backward()
                    optimizer.step()
                    if run.iteration == batches:
                        raise RuntimeError("killed")
        return model, saver

    whole, best = go(tmp_path / "whole", None)
    with pytest.raises(RuntimeError):
        go(tmp_path / "cut", 6)
    assert manifest(tmp_path / "cut", "best-val_score")["iteration"] == 5
    resumed, again = go(tmp_path / "cut", None)
    assert torch.equal(whole.weight, resumed.weight)
    assert (best.best.value, best.best.moment) == (again.best.value, again.best.moment)


# Limits


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("schedule", [None, Every(steps=2), Every(steps=3)])
def test_max_to_keep_counts_the_checkpoint_at_the_end(train_scores, tmp_path, number, schedule):
    saver = ModelSaver(max_to_keep=number)
    train_scores(tmp_path, [saver if schedule is None else saver.when(schedule)])
    assert len(steps(tmp_path)) == number
    assert steps(tmp_path)[-1].startswith("step-00000020")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_keep_checkpoint_max_counts_the_checkpoint_at_the_end(train_scores, tmp_path, number):
    config = CheckpointConfig(save_checkpoint_steps=1, keep_checkpoint_max=number)
    train_scores(tmp_path, [ModelCheckpoint(config=config)])
    assert len(steps(tmp_path)) == number


def test_a_backup_is_a_single_checkpoint(train_scores, tmp_path):
    train_scores(tmp_path, [BackupAndRestore(save_freq=3)])
    assert steps(tmp_path) == of(20)


def test_max_to_keep_counts_the_checkpoint_of_a_stop(train_scores, tmp_path):
    saver = ModelSaver(max_to_keep=2).when(Every(steps=2))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Loop([saver], model=model, optimizer=optimizer, workdir=tmp_path) as run:
        for _ in run.epochs(4):
            for _ in run.batches(range(5)):
                optimizer.step()
                if run.iteration == 6:
                    run.stop("enough")
    assert steps(tmp_path) == of(6, 7)
    saver = ModelSaver(max_to_keep=2).when(Every(steps=2))
    assert train_scores(tmp_path, [saver]).step == 20
    assert len(steps(tmp_path)) == 2


def test_a_limit_does_not_delete_checkpoints_of_other_savers(train_scores, tmp_path):
    savers = [
        ModelSaver(max_to_keep=1),
        ModelSaver(max_to_keep=2, tag="odd").when(Every(steps=7)),
        MinSaver("score"),
        MaxSaver("score", filename="most"),
    ]
    train_scores(tmp_path, savers, scores=(9.0, *SCORES))
    assert steps(tmp_path) == of(5, 14, 15, 21, 25)  # the maximum, one of "odd", the minimum, another of "odd", and the end
    assert manifest(tmp_path, "best-score")["tags"]
