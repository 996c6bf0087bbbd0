from __future__ import annotations

import re

import pytest

from hookpoint import Every
from hookpoint.callbacks import BackupAndRestore


def test_only_the_newest_backup_is_kept(train_on_disk, disk):
    train_on_disk([BackupAndRestore()], [{}, {}, {}])
    assert [tags for _, tags in disk.saved] == [["backup"]] * 3
    assert disk.kept("backup") == [9]


def test_the_previous_backup_can_be_kept(train_on_disk, disk):
    train_on_disk([BackupAndRestore(double_checkpoint=True)], [{}, {}, {}])
    assert disk.kept("backup") == [6, 9]


def test_a_backup_can_be_saved_every_n_steps(train_on_disk, disk):
    train_on_disk([BackupAndRestore(save_freq=2)], [{}, {}])
    assert [step for step, tags in disk.saved if "backup" in tags] == [2, 4, 6]
    assert disk.kept("backup") == [6]


def test_a_schedule_decides_when_to_save(train_on_disk, disk):
    train_on_disk([BackupAndRestore().when(Every(epochs=2))], [{}, {}, {}])
    assert [step for step, tags in disk.saved if "backup" in tags] == [6]


def test_a_restarted_run_resumes_from_the_backup(train_on_disk, disk):
    assert train_on_disk([BackupAndRestore()], [{}]).step == 3
    run = train_on_disk([BackupAndRestore()], [{}, {}])
    assert (run.step, run.epoch) == (6, 2)


@pytest.mark.parametrize("save_freq", [0, -1, False, True, 1.5, "batch", None])
def test_an_invalid_frequency_raises(save_freq):
    message = f"BackupAndRestore: save_freq must be an integer >= 1, got {save_freq!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        BackupAndRestore(save_freq=save_freq)


def test_deleting_the_last_checkpoint_raises():
    with pytest.raises(ValueError, match="extending a run requires the last checkpoint"):
        BackupAndRestore(delete_checkpoint=True)
