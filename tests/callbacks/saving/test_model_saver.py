from __future__ import annotations

import re
from functools import partial

import pytest

from hookpoint import Every
from hookpoint.callbacks import BackupAndRestore, MaxSaver, MinSaver, ModelCheckpoint, ModelSaver, TopKSaver
from hookpoint.core.checkpoint.store import Kept

NONE_FOR_GOOD = "  write     keep_checkpoint_every_n_hours=None to keep none permanently"


def kept(saver, *minutes):
    there = [Kept(f"step-{step}", step, 60.0 * elapsed) for step, elapsed in enumerate(minutes, 1)]
    keep = saver.rules["model"]
    return [one.step for one in (there if keep is None else keep(there))]


def test_a_checkpoint_is_saved_at_the_end_of_each_epoch(train_on_disk, disk):
    train_on_disk([ModelSaver()], [{}, {}])
    assert disk.saved == [(3, ["model"]), (6, ["model"])]


def test_a_schedule_decides_when_to_save(train_on_disk, disk):
    train_on_disk([ModelSaver().when(Every(steps=2))], [{}, {}])
    assert [step for step, tags in disk.saved if tags == ["model"]] == [2, 4, 6]


def test_the_newest_checkpoints_are_kept(train_on_disk, disk):
    train_on_disk([ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=None)], [{}] * 4)
    assert disk.kept("model") == [9, 12]


def test_a_checkpoint_per_n_hours_of_training_is_kept_permanently():
    saver = ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=1)
    assert kept(saver, 10, 20, 70, 80, 130, 140, 150) == [1, 3, 5, 6, 7]


def test_no_checkpoint_is_kept_permanently_before_n_hours():
    saver = ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=1)
    assert kept(saver, 10, 20, 30, 40) == [3, 4]


def test_the_default_keeps_ten_checkpoints_and_another_per_half_hour():
    assert kept(ModelSaver(), *range(0, 120, 5)) == [1, 7, 13, *range(15, 25)]


def test_without_a_limit_all_checkpoints_are_kept():
    assert kept(ModelSaver(max_to_keep=None), 1, 2, 3) == [1, 2, 3]


@pytest.mark.parametrize(
    "saver",
    [
        ModelSaver,
        partial(MinSaver, "score"),
        partial(MaxSaver, "score"),
        partial(TopKSaver, "score"),
        BackupAndRestore,
        ModelCheckpoint,
    ],
)
def test_every_saver_saves_in_the_background_by_default(saver, train_on_disk, disk):
    train_on_disk([saver()], [{"score": 1.0}])
    assert disk.background[0] is True


@pytest.mark.parametrize(
    "saver",
    [
        ModelSaver,
        partial(MinSaver, "score"),
        partial(MaxSaver, "score"),
        partial(TopKSaver, "score"),
        BackupAndRestore,
        ModelCheckpoint,
    ],
)
def test_without_async_save_training_waits(saver, train_on_disk, disk):
    train_on_disk([saver(async_save=False)], [{"score": 1.0}])
    assert disk.background[0] is False


def test_a_custom_tag_is_part_of_the_name():
    assert ModelSaver().name == "ModelSaver"
    assert (ModelSaver(tag="often").name, ModelSaver(tag="often").tag) == ("ModelSaver(often)", "often")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_to_keep": 0}, "ModelSaver: max_to_keep must be an integer >= 1, got 0."),
        ({"max_to_keep": 2.5}, "ModelSaver: max_to_keep must be an integer >= 1, got 2.5."),
        ({"max_to_keep": True}, "ModelSaver: max_to_keep must be an integer >= 1, got True."),
        (
            {"keep_checkpoint_every_n_hours": 0},
            "ModelSaver: keep_checkpoint_every_n_hours must be a number > 0, got 0.\n" + NONE_FOR_GOOD,
        ),
        (
            {"max_to_keep": None, "keep_checkpoint_every_n_hours": -1},
            "ModelSaver: keep_checkpoint_every_n_hours must be a number > 0, got -1.\n" + NONE_FOR_GOOD,
        ),
        (
            {"keep_checkpoint_every_n_hours": float("inf")},
            "ModelSaver: keep_checkpoint_every_n_hours must be a number > 0, got inf.\n" + NONE_FOR_GOOD,
        ),
    ],
)
def test_invalid_arguments_raise(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ModelSaver(**given)
