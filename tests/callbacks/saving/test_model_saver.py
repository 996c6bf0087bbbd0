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


def test_it_saves_at_the_end_of_each_epoch(train_on_disk, disk):
    train_on_disk([ModelSaver()], [{}, {}])
    assert disk.saved == [(3, ["model"]), (6, ["model"])]


def test_a_schedule_moves_it(train_on_disk, disk):
    train_on_disk([ModelSaver().when(Every(steps=2))], [{}, {}])
    assert [step for step, tags in disk.saved if tags == ["model"]] == [2, 4, 6]


def test_the_newest_are_kept(train_on_disk, disk):
    train_on_disk([ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=None)], [{}] * 4)
    assert disk.kept("model") == [9, 12]


def test_one_of_each_so_many_hours_of_training_is_kept_for_ever():
    saver = ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=1)
    assert kept(saver, 10, 20, 70, 80, 130, 140, 150) == [1, 3, 5, 6, 7]


def test_none_is_kept_for_ever_before_so_many_hours_are_over():
    saver = ModelSaver(max_to_keep=2, keep_checkpoint_every_n_hours=1)
    assert kept(saver, 10, 20, 30, 40) == [3, 4]


def test_ten_and_one_of_each_half_hour_are_the_default():
    assert kept(ModelSaver(), *range(0, 120, 5)) == [1, 7, 13, *range(15, 25)]


def test_all_are_kept_where_no_number_is_given():
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
def test_every_saver_writes_in_the_background_unless_told_otherwise(saver, train_on_disk, disk):
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
def test_a_saver_that_is_told_so_makes_training_wait(saver, train_on_disk, disk):
    train_on_disk([saver(async_save=False)], [{"score": 1.0}])
    assert disk.background[0] is False


def test_a_tag_of_its_own_is_in_its_name():
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
def test_what_means_nothing_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ModelSaver(**given)
