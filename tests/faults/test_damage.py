"""A checkpoint with a damaged byte in any file is noticed and quarantined, and the previous one is used."""

from __future__ import annotations

import random
import shutil
import signal

import pytest
from scale import times

from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint_store import CheckpointStore

KILLED_AT = 21  # in the middle of the third epoch; the newest checkpoints are of steps 18 and 20
NEWEST, BEFORE = "step-00000020", "step-00000018"
CHUNKS, TRUNCATIONS, FLIPS = times(full=10, sample=1), times(full=5, sample=10), times(full=50, sample=30)


@pytest.fixture
def killed(trial):
    """A killed run."""
    run = trial()
    assert run.start(site="on_iter_begin", step=KILLED_AT).wait() == -signal.SIGKILL
    assert run.checkpoints[-2:] == [BEFORE, NEWEST]
    return run


def truncate(data, chance):
    return data[: chance.randrange(len(data))]


def flip(data, chance):
    changed, length = bytearray(data), min(chance.randint(1, 64), len(data))
    begin = chance.randint(0, len(data) - length)
    for place in range(begin, begin + length):
        changed[place] ^= chance.randint(1, 255)
    return bytes(changed)


DAMAGES = {"truncated": truncate, "flipped": flip}


def damage(folder, change, chance, number=0):
    """Damage one file of a checkpoint, chosen by `number`."""
    files = sorted(folder.iterdir())
    file = files[number % len(files)]
    data = file.read_bytes()
    changed = change(data, chance)
    assert changed != data
    file.write_bytes(changed)
    return file.name


def opened(workdir):
    """Return the step that a run would resume from."""
    store = CheckpointStore(workdir)
    try:
        found = store.open("auto", {})
    finally:
        store.close()
    return None if found is None else found.state["clocks"]["step"]


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(("name", "number"), [("truncated", TRUNCATIONS), ("flipped", FLIPS)])
def test_a_damaged_checkpoint_is_quarantined_and_the_previous_one_used(name, number, chunk, killed, place, tally, caplog):
    chance, seen = random.Random(f"{name} {chunk}"), set()
    for case in range(number):
        workdir = place / f"case-{case}"
        shutil.copytree(killed.workdir, workdir, symlinks=True)
        newest = workdir / "checkpoints" / NEWEST
        seen.add(damage(newest, DAMAGES[name], chance, case))
        damaged = {file.name: file.read_bytes() for file in newest.iterdir()}
        caplog.clear()
        assert opened(workdir) == 18
        assert f"{newest} is damaged" in caplog.text or f"the manifest.json of {newest}" in caplog.text
        aside = workdir / "checkpoints" / f"damaged-{NEWEST}"
        assert {file.name: file.read_bytes() for file in aside.iterdir()} == damaged
        assert not newest.exists()
        shutil.rmtree(workdir)
    tally(f"checkpoint {name}", cases=number, noticed=number)
    assert seen == {"manifest.json", "model.safetensors", "state.pt"}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_resumed_from_the_previous_checkpoint_ends_the_same(name, killed, tally):
    damage(killed.workdir / "checkpoints" / NEWEST, DAMAGES[name], random.Random(name))
    child = killed.start()
    assert not killed.differences(child), child.log
    assert f"from {killed.workdir}/checkpoints/{BEFORE}" in child.log
    tally("resumed from the one before", runs=1, bitwise_equal=1)


@pytest.mark.parametrize("change", ["manifest is gone", "file is gone", "folder is a file", "renamed"])
def test_an_incomplete_checkpoint_is_skipped(change, killed):
    newest = killed.workdir / "checkpoints" / NEWEST
    if change == "manifest is gone":
        (newest / "manifest.json").unlink()
    elif change == "file is gone":
        (newest / "model.safetensors").unlink()
    elif change == "folder is a file":
        shutil.rmtree(newest)
        newest.write_text("?")
    else:
        newest.rename(newest.with_name("step-00000022"))
    child = killed.start()
    assert not killed.differences(child), child.log
    assert f"from {killed.workdir}/checkpoints/{BEFORE}" in child.log


def test_an_extra_file_in_a_checkpoint_is_reported_and_ignored(killed):
    newest = killed.workdir / "checkpoints" / NEWEST
    (newest / "more.txt").write_text("?")
    child = killed.start()
    assert not killed.differences(child), child.log
    assert f"from {newest}" in child.log
    assert child.log.count("some files are ignored, because its manifest.json does not list them: 'more.txt'") == 1


@pytest.mark.parametrize("number", range(times(full=10, sample=2)))
def test_a_run_does_not_start_if_all_checkpoints_are_damaged(number, killed, tally):
    chance = random.Random(number)
    for folder in killed.checkpoints:
        damage(killed.workdir / "checkpoints" / folder, chance.choice((truncate, flip)), chance, chance.randrange(3))
    before = {path: path.read_bytes() for path in killed.workdir.rglob("*") if path.is_file() and path.name != ".lock"}
    trained = killed.trace.read_text()
    child = killed.start()
    assert child.wait() == 1
    assert child.raised[0] == CannotResume.__name__
    assert "are damaged" in child.log
    assert 'resume="never"' in child.log
    assert killed.trace.read_text() == trained
    after = {path: path.read_bytes() for path in killed.workdir.rglob("*") if path.is_file() and path.name != ".lock"}
    assert after == before
    tally("all checkpoints damaged", runs=1, refused=1)
