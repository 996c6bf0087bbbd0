"""Read-only folders, file size limits, full disks, and temporary files elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from scale import chosen, times
from subject import STEPS, Variant

OF_TRAINING = ("weights", "optimizer", "rates", "generators", "batches")


def differences_in_training(run, child):
    returned = child.returned
    return [name for name in OF_TRAINING if returned[name] != run.whole.result[name]]


@pytest.mark.parametrize("what", ["workdir", "its parent", "checkpoints"])
def test_a_read_only_folder_raises_before_the_first_step(what, trial, place, tally):
    run = trial()
    run.trace.touch()
    run.trace.chmod(0o666)
    place.chmod(0o755)
    closed = {"workdir": run.workdir, "its parent": run.folder, "checkpoints": run.workdir / "checkpoints"}[what]
    closed.mkdir(parents=True, exist_ok=True)
    if what == "checkpoints":
        run.workdir.chmod(0o777)
    closed.chmod(0o555)
    child = run.start("surroundings.as_nobody" if os.getuid() == 0 else "harm.train")
    assert child.wait() == 1, child.log
    closed.chmod(0o755)
    assert "hookpoint.core.errors.CannotSave: " in child.log
    assert "could not be written: Permission denied" in child.log
    assert run.trace.read_text() == ""
    assert list(closed.iterdir()) == ([run.trace] if what == "its parent" else [])
    tally("read-only folder", starts=1, refused_before_step_1=1)


LIMITS = [(limit, begin) for limit in (700, 2000, 8000, 20000) for begin in (0, 3, 8, 17, 29)]


@pytest.mark.parametrize(("limit", "begin"), chosen(LIMITS, 2), ids=str)
def test_a_run_ended_by_a_file_size_limit_resumes_without_the_limit(limit, begin, trial, tally):
    run = trial(Variant(kind=("runner", "loop")[limit % 3 % 2]))
    child = run.start("surroundings.with_limited_files", limit=limit, begin=begin, end=STEPS + 1, trace=os.devnull)
    assert child.wait() == 1, child.log
    assert child.raised[0] == "CannotSave", child.log
    assert "File too large" in child.log
    assert run.is_sound
    last = run.start()
    differences = run.differences(last)
    tally("file size limit, for good", runs=1, stopped=1, lost=0, bitwise_equal=not differences)
    assert not differences, last.log


@pytest.mark.parametrize(("limit", "begin"), chosen(LIMITS, 2), ids=str)
def test_a_file_size_limit_during_one_save_costs_only_that_save(limit, begin, trial, tally):
    run = trial()
    child = run.start("surroundings.with_limited_files", limit=limit, begin=begin, end=begin + 2, trace=os.devnull)
    differences = differences_in_training(run, child)
    assert "the last good checkpoint is" in child.log, child.log
    assert run.is_sound
    assert run.newest()["clocks"]["step"] == STEPS
    tally("file size limit, one save", runs=1, went_on=1, bitwise_equal=not differences)
    assert not differences, child.log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("variant", [Variant(), Variant(kind="loop"), Variant(in_background=True)], ids=str)
def test_a_full_disk_for_logs_does_not_change_the_weights(variant, trial, tally):
    run = trial(variant)
    child = run.start("surroundings.with_full_logs")
    differences = differences_in_training(run, child)
    assert "JSONWriter failed at on_records" in child.log
    assert "TFEventWriter failed at on_records" in child.log
    assert run.newest()["clocks"]["step"] == STEPS
    tally("full disk for logs", runs=1, bitwise_equal=not differences)
    assert not differences, child.log


@pytest.mark.parametrize("variant", [Variant(), Variant(kind="loop", in_background=True)], ids=str)
def test_nothing_is_written_outside_the_workdir(variant, trial, place, tmp_path, tally):
    run = trial(variant)
    run.workdir = tmp_path / "run"  # on disk, with temporary files in memory if possible
    temporary, home = place / "temporary", place / "home"
    temporary.mkdir()
    home.mkdir()
    child = run.start("surroundings.watched", temporary=str(temporary), home=str(home))
    result, outside = child.returned
    assert outside == []
    assert list(temporary.iterdir()) == list(home.iterdir()) == []
    assert {path.name for path in run.workdir.iterdir()} == {
        ".control",
        ".lock",
        "checkpoints",
        "run.json",
        "events.jsonl",
        "scalars.jsonl",
        "tensorboard",
    }
    assert result == run.whole.result
    tally("TMPDIR elsewhere", runs=1, files_outside=0, bitwise_equal=1)


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a disk of a given size, or resizes it."""
    folder = tmp_path / "small"
    folder.mkdir()

    def size(number):
        what = "remount," if folder.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{what}size={number}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            pytest.skip(f"cannot mount: {error}")
        if done.returncode != 0:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        return folder

    yield size
    if folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("number", range(times(full=20, sample=1)))
def test_a_run_survives_a_disk_that_fills_up(number, small_disk, trial, tally):
    run = trial(Variant(kind=("runner", "loop")[number % 2], in_background=number % 3 == 2))
    run.workdir = small_disk(f"{60 + 10 * number}k") / "run"
    child = run.start()
    ended = child.wait()
    assert ended in (0, 1), child.log
    assert ended == 0 or child.raised[0] == "CannotSave", child.log
    assert run.is_sound, child.log
    small_disk("8m")
    last = run.start()
    differences = run.differences(last) if ended else differences_in_training(run, last)
    tally("full disk", runs=1, went_on=not ended, stopped=ended, lost=0, bitwise_equal=not differences)
    assert not differences, child.log + last.log
