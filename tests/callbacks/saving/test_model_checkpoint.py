from __future__ import annotations

import math
import re

import pytest
import torch

from hookpoint import Callback, Every
from hookpoint.callbacks import CheckpointConfig, ModelCheckpoint
from hookpoint.core.loop.loop import Loop


def test_by_default_each_epoch_is_saved_and_five_checkpoints_are_kept(train_on_disk, disk):
    train_on_disk([ModelCheckpoint()], [{}] * 6)
    assert disk.saved == [(3 * epoch, ["CKP"]) for epoch in range(1, 7)]
    assert disk.kept("CKP") == [6, 9, 12, 15, 18]


def test_a_config_sets_how_often_to_save_and_how_many_to_keep(train_on_disk, disk):
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2)
    train_on_disk([ModelCheckpoint("resnet", config=config)], [{}, {}])
    assert [step for step, tags in disk.saved if "resnet" in tags] == [2, 4, 6]
    assert disk.kept("resnet") == [4, 6]


def test_a_config_that_saves_every_step_saves_each_step_once(train_on_disk, disk):
    train_on_disk([ModelCheckpoint(config=CheckpointConfig())], [{}, {}])
    assert [step for step, tags in disk.saved if "CKP" in tags] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("save_freq", "steps"), [("epoch", [3, 6]), (2, [2, 4, 6]), (None, [1, 2, 3, 4, 5, 6])], ids=["epoch", "steps", "config"]
)
def test_save_freq_replaces_the_schedule_of_the_config(train_on_disk, disk, save_freq, steps):
    train_on_disk([ModelCheckpoint(save_freq=save_freq, config=CheckpointConfig())], [{}, {}])
    assert [step for step, tags in disk.saved if "CKP" in tags] == steps


def test_a_schedule_replaces_save_freq_and_the_config(train_on_disk, disk):
    train_on_disk([ModelCheckpoint(save_freq=1, config=CheckpointConfig()).when(Every(epochs=2))], [{}, {}])
    assert [step for step, tags in disk.saved if "CKP" in tags] == [6]


def test_the_config_sets_whether_training_waits(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint(config=CheckpointConfig(async_save=False), monitor="score")], scores(1.0))
    assert disk.background[:3] == [False, False, False]


# Best values


def test_the_best_checkpoint_is_kept_beside_the_others(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint(monitor="score")], scores(2.0, 3.0, 1.0))
    assert [(step, sorted(tags)) for step, tags in disk.saved] == [
        (3, ["CKP", "best-score"]),
        (6, ["CKP"]),
        (9, ["CKP", "best-score"]),
    ]


def test_save_best_only_keeps_only_the_best_checkpoint(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint(monitor="score", mode="max", save_best_only=True)], scores(2.0, 1.0, 3.0))
    assert [step for step, tags in disk.saved if tags == ["best-score"]] == [3, 9]
    assert not any("CKP" in tags for _, tags in disk.saved)
    assert disk.kept("best-score") == [9]


def test_save_best_only_follows_a_schedule_by_epochs(train_on_disk, disk, scores):
    saver = ModelCheckpoint(monitor="score", save_best_only=True).when(Every(epochs=2))
    train_on_disk([saver], scores(5.0, 4.0, 3.0, 6.0, 2.0, 1.0))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [6, 18]


def test_save_best_only_follows_the_retention_rules_of_the_config(train_on_disk, disk, scores):
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=3)
    train_on_disk([ModelCheckpoint(monitor="score", save_best_only=True, config=config)], scores(5.0, 4.0, 6.0, 3.0, 2.0))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 6, 12, 15]
    assert disk.kept("best-score") == [6, 12, 15]


def test_save_best_only_keeps_the_best_whatever_the_retention_rules(train_on_disk, disk, scores):
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=60)
    saver = ModelCheckpoint(monitor="score", save_best_only=True, config=config)
    train_on_disk([saver], scores(5.0, 4.0, 3.0, 6.0))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 6, 9]
    assert disk.kept("best-score") == [3, 9]


def test_validation_at_the_end_of_epochs_counts_with_any_schedule(train_on_disk, disk, caplog, scores):
    config = CheckpointConfig(save_checkpoint_steps=2)
    train_on_disk([ModelCheckpoint(monitor="score", config=config)], scores(2.0, 1.0), model=torch.nn.Linear(1, 1))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 6]
    assert caplog.messages == []


def test_mode_auto_depends_on_the_metric_name():
    assert ModelCheckpoint(monitor="val_acc", mode="auto").best.mode == "max"
    assert ModelCheckpoint(monitor="val_loss", mode="auto").best.mode == "min"
    assert ModelCheckpoint().best is None


def test_the_first_value_must_beat_the_threshold(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint(monitor="score", save_best_only=True, initial_value_threshold=1.5)], scores(2.0, 1.0))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [6]


def test_the_best_value_is_restored_by_a_resume(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint(monitor="score")], scores(1.0))
    train_on_disk([ModelCheckpoint(monitor="score")], scores(1.0, 2.0, 0.5))
    assert [step for step, tags in disk.saved if "best-score" in tags] == [3, 9]


def test_a_monitor_added_to_a_resumed_run_starts_from_scratch(train_on_disk, disk, scores):
    train_on_disk([ModelCheckpoint()], scores(1.0))
    train_on_disk([ModelCheckpoint(monitor="score")], scores(1.0, 2.0))
    assert disk.kept("best-score") == [6]


# Exceptions and names


def test_an_exception_is_saved_if_the_config_says_so(disk):
    saver = ModelCheckpoint(config=CheckpointConfig(save_checkpoint_steps=2, exception_save=True))
    with pytest.raises(RuntimeError, match="boom"), Loop([saver], store=disk) as run:
        for batch in run.batches(range(5)):
            if batch == 3:
                raise RuntimeError("boom")
    assert disk.saved == [(2, ["CKP"]), (3, ["exception"])]


def test_an_exception_is_not_saved_by_default(disk):
    with pytest.raises(RuntimeError, match="boom"), Loop([ModelCheckpoint()], store=disk) as run:
        for _ in run.batches(range(5)):
            raise RuntimeError("boom")
    assert disk.saved == []


def test_the_name_of_the_newest_checkpoint_is_known(train_on_disk):
    seen = []

    class Looks(Callback):
        def on_epoch_end(self):
            seen.append(saver.latest_ckpt_file_name)

    saver = ModelCheckpoint()
    train_on_disk([saver, Looks()], [{}, {}])
    assert seen == [None, "disk/3"]
    assert saver.latest_ckpt_file_name == "disk/6"
    again = ModelCheckpoint()
    train_on_disk([again], [{}, {}])
    assert again.latest_ckpt_file_name == "disk/newest"


# Invalid arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"save_best_only": True},
            'ModelCheckpoint: save_best_only=True needs a metric.\n  write     monitor="val_loss"',
        ),
        (
            {"prefix": "runs/{epoch:02d}.keras"},
            (
                "ModelCheckpoint: prefix must be a name, not a path or a template, got 'runs/{epoch:02d}.keras'."
                '\n  write     prefix="resnet", and pass workdir="runs/resnet" to the Runner or Loop'
            ),
        ),
        ({"prefix": ""}, "ModelCheckpoint: prefix must be a name"),
        ({"prefix": None}, "ModelCheckpoint: prefix must be a name"),
        (
            {"save_weights_only": True},
            (
                "ModelCheckpoint: save_weights_only=True is not supported; a run resumes from a complete checkpoint."
                "\n  leave     it out; each checkpoint contains model.safetensors"
            ),
        ),
        (
            {"by_epoch": True, "interval": 5},
            "ModelCheckpoint takes a schedule, not by_epoch= and interval=.\n  write     .when(Every(epochs=5))",
        ),
        (
            {"by_epoch": False, "interval": 10},
            "ModelCheckpoint takes a schedule, not by_epoch= and interval=.\n  write     .when(Every(iterations=10))",
        ),
        (
            {"interval": -1},
            "ModelCheckpoint takes a schedule, not by_epoch= and interval=.\n  write     .when(Every(epochs=1))",
        ),
        ({"mode": "least"}, "mode must be 'auto', 'min' or 'max', got 'least'."),
        ({"save_freq": 0}, "ModelCheckpoint: save_freq must be an integer >= 1, got 0."),
        ({"save_freq": False}, "ModelCheckpoint: save_freq must be an integer >= 1, got False."),
        ({"monitor": "score", "mode": "auto"}, "mode='auto': the name 'score' is ambiguous."),
        (
            {"monitor": "loss", "initial_value_threshold": math.nan},
            "ModelCheckpoint: initial_value_threshold must be a number, got nan.",
        ),
        (
            {"monitor": "loss", "initial_value_threshold": "0.5"},
            "ModelCheckpoint: initial_value_threshold must be a number, got '0.5'.",
        ),
        ({"initial_value_threshold": 0.5}, "ModelCheckpoint: initial_value_threshold needs a metric."),
    ],
)
def test_invalid_arguments_raise_with_a_suggestion(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ModelCheckpoint(**given)


def test_the_default_name_contains_the_prefix_or_metric():
    assert ModelCheckpoint().name == "ModelCheckpoint(CKP)"
    assert ModelCheckpoint("resnet", monitor="loss").name == "ModelCheckpoint(resnet)"
    assert ModelCheckpoint(monitor="loss", save_best_only=True).name == "ModelCheckpoint(loss)"
