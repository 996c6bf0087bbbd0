"""Runs whose step stays 0: epochs without batches, an optimizer unknown to the run, scikit-learn."""

from __future__ import annotations

import json
import os

import pytest
import torch

from hookpoint import Loop
from hookpoint.callbacks import (
    BackupAndRestore,
    EarlyStopping,
    MaxSaver,
    MinSaver,
    ModelCheckpoint,
    ModelSaver,
    SwapEMAWeights,
    TopKSaver,
)
from hookpoint.core.schedule.when import Every
from hookpoint.monitors import read_scalars

SCORES = [3.0, 2.0, 1.0, 4.0, 5.0]


class Weights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1))


def by_epochs(run, model, epoch):
    """Train without batches: the run sees no step."""
    model.value.data.fill_(float(epoch))


def by_unknown_optimizer(run, model, epoch):
    """Train in batches with an optimizer that the run does not know."""
    for _ in run.batches(range(2)):
        with torch.no_grad():
            model.value.fill_(float(epoch))


def train_without_steps(workdir, callbacks, how=by_epochs, scores=SCORES, log="score", **options):
    model = Weights()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if how is by_unknown_optimizer else None
    with Loop(callbacks, model=model, optimizer=optimizer, workdir=workdir, **options) as run:
        for epoch in run.epochs(len(scores)):
            how(run, model, epoch)
            run.log(log, scores[epoch - 1])
    assert run.step == 0
    return run, model


def folders(workdir):
    """Return the checkpoints of a workdir from oldest to newest, as (name, epoch, value of the weight)."""
    from safetensors.torch import load_file

    found = []
    for name in sorted(os.listdir(workdir / "checkpoints"), key=lambda name: (len(name), name)):
        folder = workdir / "checkpoints" / name
        if not folder.is_symlink():
            manifest = json.loads((folder / "manifest.json").read_text())
            found.append((name, manifest["epoch"], load_file(folder / "model.safetensors")["value"].item()))
    return found


WAYS = pytest.mark.parametrize("how", [by_epochs, by_unknown_optimizer])


@WAYS
@pytest.mark.parametrize(
    ("saver", "best"), [(MinSaver("score"), 3), (MaxSaver("score"), 5), (ModelCheckpoint(monitor="score"), 3)]
)
def test_the_best_epoch_is_kept(tmp_path, how, saver, best):
    train_without_steps(tmp_path, [saver], how)
    assert ("best-score", best, float(best)) in folders(tmp_path)
    assert (saver.best.value, saver.best.moment.epoch) == (SCORES[best - 1], best)


@WAYS
def test_the_k_best_epochs_are_kept(tmp_path, how):
    train_without_steps(tmp_path, [TopKSaver("score", k=2)], how, scores=[3.0, 1.0, 4.0, 2.0, 9.0])
    assert [epoch for name, epoch, _ in folders(tmp_path) if name.startswith("step-")] == [2, 4, 5]  # the last epoch is the end


@WAYS
def test_every_epoch_is_saved(tmp_path, how):
    train_without_steps(tmp_path, [ModelSaver()], how)
    assert folders(tmp_path) == [
        ("step-00000000", 1, 1.0),
        *((f"step-00000000-{epoch}", epoch, float(epoch)) for epoch in range(2, 6)),
    ]


@WAYS
def test_the_best_weights_are_restored(tmp_path, how):
    run, model = train_without_steps(tmp_path, [EarlyStopping("score", patience=2, mode="min", restore_best_weights=True)], how)
    assert run.epoch == 5
    assert model.value.item() == 3.0


@WAYS
def test_weights_are_averaged(how):
    ema = SwapEMAWeights(0.5)
    train_without_steps(None, [ema], how, scores=[0.0] * 3)
    expected = {by_epochs: [1.0, 2.0, 3.0], by_unknown_optimizer: [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]}[how]
    average = expected[0]
    for value in expected[1:]:
        average = 0.5 * average + 0.5 * value
    assert ema.weights()["value"].item() == average
    assert ema.updates == len(expected) - 1


def test_averages_are_resumed(tmp_path):
    whole, ema = SwapEMAWeights(0.5), SwapEMAWeights(0.5)
    train_without_steps(None, [whole], by_unknown_optimizer, scores=[0.0] * 4)
    train_without_steps(tmp_path, [SwapEMAWeights(0.5), ModelSaver()], by_unknown_optimizer, scores=[0.0] * 2)
    train_without_steps(tmp_path, [ema, ModelSaver()], by_unknown_optimizer, scores=[0.0] * 4)
    assert ema.updates == whole.updates
    assert torch.equal(ema.weights()["value"], whole.weights()["value"])


@pytest.mark.parametrize("saver", [ModelSaver(max_to_keep=2), BackupAndRestore()])
def test_limits_count_epochs(tmp_path, saver):
    train_without_steps(tmp_path, [saver])
    number = 2 if isinstance(saver, ModelSaver) else 1
    assert [epoch for _, epoch, _ in folders(tmp_path)] == [4, 5][-number:]


@WAYS
def test_a_resumed_run_ends_like_an_uninterrupted_run(tmp_path, how):
    train_without_steps(tmp_path / "whole", [MinSaver("score"), ModelSaver()], how)
    train_without_steps(tmp_path / "cut", [MinSaver("score"), ModelSaver()], how, scores=SCORES[:2])
    run, _ = train_without_steps(tmp_path / "cut", [MinSaver("score"), ModelSaver()], how)
    assert run.epoch == 5
    assert folders(tmp_path / "cut") == folders(tmp_path / "whole")
    rows = [[(row["epoch"], row["score"]) for row in read_scalars(tmp_path / name / "scalars.jsonl") if "score" in row]
            for name in ("whole", "cut")]  # fmt: skip
    assert rows[0] == rows[1]


def test_rows_after_the_resumed_checkpoint_are_removed(tmp_path):
    train_without_steps(tmp_path, [ModelSaver()])
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["step"] == 0
    first = tmp_path / "checkpoints" / "step-00000000-2"
    train_without_steps(tmp_path, [ModelSaver()], scores=SCORES[:3], resume=str(first))
    rows = [(row["epoch"], row["iteration"], row["score"]) for row in read_scalars(tmp_path / "scalars.jsonl")]
    assert rows == [(1, 0, 3.0), (2, 0, 2.0), (3, 0, 1.0)]


def test_checkpoints_after_the_resumed_checkpoint_are_moved(tmp_path):
    train_without_steps(tmp_path, [MinSaver("score"), ModelSaver()])
    first = tmp_path / "checkpoints" / "step-00000000-2"
    train_without_steps(tmp_path, [MinSaver("score"), ModelSaver()], scores=SCORES[:2], resume=str(first))
    assert folders(tmp_path) == [("best-score", 2, 2.0), ("step-00000000", 1, 1.0), ("step-00000000-2", 2, 2.0)]
    moved = os.listdir(tmp_path / "previous" / "001" / "checkpoints")
    assert sorted(moved) == ["best-score", "step-00000000-3", "step-00000000-4", "step-00000000-5"]


def test_scikit_learn_keeps_the_best_epoch(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    import numpy as np

    class Model:
        def __init__(self):
            self.regressor = linear_model.SGDRegressor(random_state=0)

        def state_dict(self):
            return {name: torch.tensor(getattr(self.regressor, name)) for name in ("coef_", "intercept_", "t_")
                    if hasattr(self.regressor, name)}  # fmt: skip

        def load_state_dict(self, state):
            for name, value in state.items():
                setattr(self.regressor, name, value.numpy())

    model, kept = Model(), {}
    data = np.arange(8.0)[:, None] / 8
    stopper = EarlyStopping("score", patience=9, mode="min", restore_best_weights=True)
    with Loop([MinSaver("score"), stopper], model=model, workdir=tmp_path) as run:
        for epoch in run.epochs(4):
            model.regressor.partial_fit(data, 2 * data[:, 0])
            run.log(score=[3.0, 1.0, 2.0, 4.0][epoch - 1])
            kept[epoch] = model.regressor.coef_.copy()
    manifest = json.loads((tmp_path / "checkpoints" / "best-score" / "manifest.json").read_text())
    assert manifest["epoch"] == 2
    assert (model.regressor.coef_ == kept[2]).all()


def test_a_value_of_an_earlier_epoch_is_not_current(tmp_path, caplog):
    saver = MinSaver("score").when(Every(epochs=2))
    with Loop([saver], model=Weights(), workdir=tmp_path) as run:
        for epoch in run.epochs(2):
            if epoch == 1:
                run.log(score=1.0)
    assert saver.best.value is None
    assert "'score' was measured at epoch 1, but the run is at epoch 2" in caplog.text
