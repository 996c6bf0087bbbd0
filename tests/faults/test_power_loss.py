"""After a loss of power at any time, the last committed checkpoint or a newer one is complete."""

from __future__ import annotations

import random
import shutil
from collections import OrderedDict

import pytest
import torch
from power import HOW, Disk, recorded
from scale import FULL, times

from hookpoint.core.checkpoint.store import Request
from hookpoint.core.errors import HookpointError
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.retention import KeepNewest
from hookpoint.storage.verify import verify

SAVES = 7
CHUNKS, REPLAYS = times(full=4, sample=1), times(full=250, sample=22)
TWICE = times(full=50, sample=10)


def state(step):
    weights = OrderedDict(weight=torch.full((3, 4), float(step)), bias=torch.full((4,), -float(step)))
    return {"parts": {"model": weights, "optimizer": {"moment": torch.arange(5) * step}}, "clocks": {"step": step}}


def is_as_saved(found):
    wanted, model = state(found["clocks"]["step"]), found["parts"]["model"]
    same = all(torch.equal(model[name], one) for name, one in wanted["parts"]["model"].items())
    return same and torch.equal(found["parts"]["optimizer"]["moment"], wanted["parts"]["optimizer"]["moment"])


class Story:
    """The operations of a store in `root`, and after how many of them each checkpoint was committed."""

    def __init__(self, root, steps, *, resume="auto"):
        self.root, self.committed = root, [(0, 0)]
        with recorded() as self.done:
            store = CheckpointStore(root / "run")
            store.open(resume, {})
            for step in steps:
                tags = {"model": KeepNewest(2)} | ({"best-loss": KeepNewest(1)} if step % 3 == 1 else {})
                store.write(state(step), step=step, elapsed=float(step), request=Request(tags, in_background=False))
                self.committed.append((len(self.done), step))
            store.close()

    def committed_by(self, position):
        """Return the newest step that was committed within `position` operations."""
        return max(step for when, step in self.committed if when <= position)

    def cut(self, position, target, chance, how, *, safe=None, without=lambda operation: False):
        """Write to `target` what a loss of power after `position` operations leaves."""
        disk = Disk(self.root, safe)
        disk.do(one for one in self.done[:position] if not without(one))
        disk.after_power_loss(target, chance, how)


def recover(root):
    """Resume from what is left; return the step, or 0 if there is none, and the number of damaged checkpoints."""
    damaged = 0
    if (root / "run" / "checkpoints").is_dir():
        damaged = sum(not row.ok for row in verify(root / "run").rows)
    store = CheckpointStore(root / "run")
    found = store.open("auto", {})
    store.close()
    assert found is None or is_as_saved(found.state)
    return 0 if found is None else found.state["clocks"]["step"], damaged


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return Story(tmp_path_factory.mktemp("power"), range(1, SAVES + 1))


def position_of(number, chunk, story, chance):
    """Return after how many operations the power is lost; the whole matrix covers each number."""
    return (number * CHUNKS + chunk) % (len(story.done) + 1) if FULL else chance.randint(0, len(story.done))


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("how", HOW)
def test_committed_checkpoints_survive_a_power_loss(how, chunk, story, place, tally):
    chance, lost, damaged, newer = random.Random(f"{how} {chunk}"), 0, 0, 0
    for number in range(REPLAYS):
        position = position_of(number, chunk, story, chance)
        story.cut(position, place / "left", chance, how)
        step, bad = recover(place / "left")
        committed = story.committed_by(position)
        assert step <= committed + 1, "nobody saved that"
        lost, newer, damaged = lost + (step < committed), newer + (step > committed), damaged + bad
        shutil.rmtree(place / "left")
    tally("power loss", replays=REPLAYS, lost=lost, damaged=damaged, newer=newer)
    assert (lost, damaged) == (0, 0)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_checkpoints_survive_a_second_power_loss_during_recovery(chunk, story, place, tally):
    chance, lost, damaged = random.Random(f"again {chunk}"), 0, 0
    for _ in range(TWICE):
        position = chance.randint(0, len(story.done))
        story.cut(position, place / "left", chance, "any of it")
        shutil.copytree(place / "left", place / "safe", symlinks=True)
        again = Story(place / "left", [SAVES + 1])
        second = chance.randint(0, len(again.done))
        again.cut(second, place / "left again", chance, chance.choice(HOW), safe=place / "safe")
        step, bad = recover(place / "left again")
        lost += step < max(story.committed_by(position), again.committed_by(second))
        damaged += bad
        for folder in ("left", "safe", "left again"):
            shutil.rmtree(place / folder)
    tally("power loss, twice", replays=TWICE, lost=lost, damaged=damaged)
    assert (lost, damaged) == (0, 0)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_an_earlier_run_survives_a_power_loss_while_it_is_moved_aside(chunk, place, tally):
    chance, lost = random.Random(f"never {chunk}"), 0
    root = place / "story"
    root.mkdir()
    Story(root, [1, 2])
    shutil.copytree(root, place / "safe", symlinks=True)
    anew = Story(root, [1], resume="never")
    for _ in range(TWICE):
        anew.cut(chance.randint(0, len(anew.done)), place / "left", chance, chance.choice(HOW), safe=place / "safe")
        recover(place / "left")
        left = place / "left" / "run"
        lost += not any(verify(kept).ok for kept in left.rglob("step-00000002") if kept.is_dir())
        shutil.rmtree(place / "left")
    tally("power loss, a run moved aside", replays=TWICE, lost=lost)
    assert lost == 0


@pytest.mark.parametrize("what", ["files", "folders"])
def test_checkpoints_are_lost_without_fsync(what, story, place):
    def without(operation):
        is_file = operation.path.endswith((".json", ".pt", ".safetensors"))
        return operation.name == "fsync" and is_file == (what == "files")

    chance, bad = random.Random(what), 0
    for position in range(0, len(story.done) + 1, 9):
        for how in ("all is lost", "names are kept"):
            story.cut(position, place / "left", chance, how, without=without)
            try:
                step, damaged = recover(place / "left")
                bad += damaged or step < story.committed_by(position)
            except HookpointError:
                bad += 1
            shutil.rmtree(place / "left")
    assert bad > 10
