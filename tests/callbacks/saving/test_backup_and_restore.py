from __future__ import annotations

import re

import pytest

from hookpoint import Every
from hookpoint.callbacks import BackupAndRestore


def test_the_newest_only_is_kept(train_on_disk, disk):
    train_on_disk([BackupAndRestore()], [{}, {}, {}])
    assert [tags for _, tags in disk.saved] == [["backup"]] * 3
    assert disk.kept("backup") == [9]


def test_the_one_before_may_be_kept_too(train_on_disk, disk):
    train_on_disk([BackupAndRestore(double_checkpoint=True)], [{}, {}, {}])
    assert disk.kept("backup") == [6, 9]


def test_it_may_save_every_so_many_steps(train_on_disk, disk):
    train_on_disk([BackupAndRestore(save_freq=2)], [{}, {}])
    assert [step for step, tags in disk.saved if "backup" in tags] == [2, 4, 6]
    assert disk.kept("backup") == [6]


def test_a_schedule_moves_it(train_on_disk, disk):
    train_on_disk([BackupAndRestore().when(Every(epochs=2))], [{}, {}, {}])
    assert [step for step, tags in disk.saved if "backup" in tags] == [6]


def test_a_run_that_is_started_again_goes_on_from_it(train_on_disk, disk):
    assert train_on_disk([BackupAndRestore()], [{}]).step == 3
    run = train_on_disk([BackupAndRestore()], [{}, {}])
    assert (run.step, run.epoch) == (6, 2)


@pytest.mark.parametrize("save_freq", [0, -1, False, True, 1.5, "batch", None])
def test_a_frequency_that_means_nothing_is_refused(save_freq):
    message = f"BackupAndRestore: save_freq must be an integer >= 1, got {save_freq!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        BackupAndRestore(save_freq=save_freq)


def test_the_last_state_stays():
    with pytest.raises(ValueError, match="extending a run requires the last checkpoint"):
        BackupAndRestore(delete_checkpoint=True)
