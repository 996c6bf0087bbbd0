"""EpochState keeps the state of callbacks in the workdir, for trainers whose checkpoints cannot hold it."""

from __future__ import annotations

import logging

import pytest

from hookpoint import Callback
from hookpoint.adapters._epoch_state import EpochState
from hookpoint.adapters._hosted_run import HostedRun
from hookpoint.core.loop.host import Host
from hookpoint.storage.checkpoint.layout import HOST_STATE, HOST_STATE_BEFORE
from hookpoint.storage.checkpoint.state_bytes import MAGIC


class Counting(Callback):
    count = 0

    def on_epoch_end(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def trained(workdir, epochs, *, first=0):
    """Run epochs without batches under a host that starts after epoch `first`; return the callback's count of epochs."""
    counting = Counting()
    hosted = HostedRun([counting], Host("Tiny"), {"workdir": workdir, "monitors": [], "control": False})
    kept = EpochState(hosted, workdir)
    state = kept.after(first)
    hosted.start(state=state, clocks={"epoch": first, "epochs_done": first} if state is None else None)
    for _ in range(first, epochs):
        hosted.driver.start_epoch()
        hosted.driver.finish_epoch()
        kept.write()
    hosted.finish()
    return counting.count


@pytest.mark.parametrize("first", [2, 3])
def test_a_fit_resumes_after_either_of_the_last_two_epochs(tmp_path, first, caplog):
    assert trained(tmp_path, 3) == 3
    assert all((tmp_path / name).read_bytes().startswith(MAGIC) for name in (HOST_STATE, HOST_STATE_BEFORE))
    assert trained(tmp_path, 5, first=first) == 5
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(("first", "said"), [(1, "is from epoch 3, but Tiny starts epoch 2"), (4, "is from epoch 3, but")])
def test_a_fit_that_starts_at_another_epoch_warns_and_has_no_state(tmp_path, first, said, caplog):
    trained(tmp_path, 3)
    assert trained(tmp_path, 5, first=first) == 5 - first
    assert said in caplog.text


def test_a_fit_that_resumes_without_a_workdir_warns(caplog):
    assert trained(None, 2) == 2
    assert not caplog.records
    assert trained(None, 5, first=3) == 2
    assert [record.message for record in caplog.records] == [
        "Tiny starts epoch 4, but without workdir=, the state of hookpoint's callbacks was not saved: they start from scratch"
    ]


def test_a_damaged_file_is_named_and_the_other_file_is_used(tmp_path, caplog):
    trained(tmp_path, 3)
    (tmp_path / HOST_STATE).write_bytes(b"torn")
    assert trained(tmp_path, 5, first=2) == 5
    assert HOST_STATE in caplog.text


def test_a_new_run_moves_both_files_to_previous(tmp_path):
    trained(tmp_path, 3)
    trained(tmp_path, 1)
    assert not (tmp_path / HOST_STATE_BEFORE).exists()
    assert (tmp_path / "previous" / "001" / HOST_STATE_BEFORE).exists()
