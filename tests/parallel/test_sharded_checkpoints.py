"""Checkpoints of which each process writes its own parts, and reads what it needs: real processes, real files."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hookpoint
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint_folder import read_manifest
from hookpoint.storage.manifest import File

torch = pytest.importorskip("torch")

SAME = ("step", "model", "optimizer", "gradients", "averages")
PARTS = ("model", "optimizer", "gradients")


@pytest.fixture
def subject(monkeypatch):
    """Return the run of the tests as one process has it, here."""
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("scripts")))
    import sharded_subject

    return sharded_subject


@pytest.mark.timeout(300)
def test_each_process_writes_its_own_parts_and_reads_what_it_needs(launch, tmp_path, subject):
    def two(folder):
        from sharded_subject import Events, train, train_two

        first, again, grown = Events(stop_at=7), Events(), Events()  # in an open window of two batches, with steps behind it
        found = {"whole": train(f"{folder}/whole"), "stopped": train(f"{folder}/run", events=first)}
        found["resumed"] = train(f"{folder}/run", events=again)
        found["kept"], found["put back"] = first.kept, again.put_back
        found["two whole"] = train_two(f"{folder}/two-whole")
        train_two(f"{folder}/two", stop_at=4)
        found["two"] = train_two(f"{folder}/two")
        found["poisoned"] = train(f"{folder}/poisoned", events=Events(stop_at=7, poison_at=6))["step"]
        train(f"{folder}/grown", events=grown, allow_world_change=True)
        found["grown"] = grown.put_back
        train(f"{folder}/moving", events=Events(stop_at=7))
        return found

    def three(folder):
        from sharded_subject import Events, train

        events = Events()
        train(folder, events=events, allow_world_change=True)
        return events.put_back

    one = subject.Events(stop_at=7)
    subject.train(str(tmp_path / "grown"), events=one)
    results = launch(two, timeout=120, folder=str(tmp_path)).results
    kept = results[0]["kept"]  # statistics of batch norm are the chief's, from the next step on
    for result in results:
        assert [name for name in SAME if result["whole"][name] != result["resumed"][name]] == []
        assert result["put back"] == kept
        assert result["two"] == result["two whole"]
        assert result["grown"] == one.kept
        assert result["poisoned"] == 3
    assert not list((tmp_path / "poisoned" / "checkpoints").glob("step-00000003*"))
    assert not list(tmp_path.glob("*/checkpoints/.staging*"))
    assert hookpoint.verify(tmp_path / "run").ok

    # What one process reads of it
    moving = tmp_path / "moving"
    folder = moving / "checkpoints" / "step-00000003"
    weights, averaged = hookpoint.load_weights(moving), hookpoint.load_weights(moving, averaged=True)
    assert subject.digest(weights) == kept["model"]
    assert subject.digest(averaged) == results[0]["stopped"]["averages"]
    model = subject.Net()
    assert list(weights) == list(model.state_dict())
    model.load_state_dict(weights)
    assert weights["first.weight"].data_ptr() == weights["second.weight"].data_ptr()
    assert set(hookpoint.load_weights(tmp_path / "two")) == {"one", "other"}
    hookpoint.load_weights(moving / "checkpoints" / "best-loss")

    # No process has written, or could have written, a whole tensor
    sizes = {name: file.size for name, file in read_manifest(folder).files.items()}
    numbers = sum(one.numel() for name, one in weights.items() if name != "second.weight") * 4
    assert sorted(sizes) == [".metadata", "__0_0.distcp", "__1_0.distcp", "state.pt"]
    assert sizes["__0_0.distcp"] + sizes["__1_0.distcp"] > 3.5 * numbers  # weights, two of Adam, averages, gradients
    assert sizes["__0_0.distcp"] < 1.05 * sizes["__1_0.distcp"]

    # Other numbers of processes
    alone, shrunk = tmp_path / "alone", subject.Events()
    shutil.copytree(moving, alone)
    subject.train(str(alone), events=shrunk, allow_world_change=True)
    assert shrunk.put_back == kept
    assert [found == kept for found in launch(three, ranks=3, folder=str(moving)).results] == [True] * 3
