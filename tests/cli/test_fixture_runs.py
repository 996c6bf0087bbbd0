"""The commands, and load_weights, read the run folders of earlier releases and of this one."""

from __future__ import annotations

import csv
import json
import re
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hookpoint

DATA = Path(__file__).parents[1] / "data"
EARLIER = sorted((DATA / "earlier_runs").glob("*.tar.xz"))
RUNS = [*EARLIER, DATA / "current_run" / "run.tar.xz"]
MACHINE = re.compile(rb"/tmp/|/home/|/root/|/Users/|root@")


@pytest.fixture(params=RUNS, ids=lambda path: path.name.partition(".")[0])
def run(request, tmp_path):
    """Unpack a run into an empty runs/ and return its folder."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


def records(folder):
    return [json.loads(line) for line in (folder / "scalars.jsonl").read_text().splitlines()]


def test_all_commands_and_load_weights_read_every_fixture_run(run, command):
    facts, rows = json.loads((run / "run.json").read_text()), records(run)
    shown = json.loads(command("show", run.name, "--json").stdout)
    assert {name: shown[name] for name in ("status", "step", "epoch")} == {
        name: facts[name] for name in ("status", "step", "epoch")
    }
    assert f"status   {facts['status']}\n" in command("show", run.name).stdout
    (listed,) = json.loads(command("runs", "--json").stdout)
    assert (listed["name"], listed["status"], listed["step"]) == (run.name, facts["status"], facts["step"])
    verified = json.loads(command("verify", run.name, "--json").stdout)
    kept = {path.name for path in (run / "checkpoints").iterdir() if not path.is_symlink()}
    assert verified["ok"]
    assert {one["name"] for one in verified["checkpoints"]} == kept
    command("export", run.name, "-o", "table.csv")
    with open("table.csv", newline="") as file:
        exported = list(csv.DictReader(file))
    logged = set().union(*rows) - {"step", "iteration", "epoch", "time", "at"}
    assert {name for name, value in exported[-1].items() if value} & logged
    assert logged <= set(exported[0])
    command("plot", run.name, "-o", "curves.svg")
    assert Path("curves.svg").read_text().count("<path") > 1
    check_weights(run)


def check_weights(run):
    loaded = hookpoint.load_weights(run)
    if run.name == "loop_without_torch":
        assert list(loaded) == ["value"]
        assert repr(loaded["value"]) in (run / "checkpoints" / "last" / "state.json").read_text()
        return
    expected = load_file(run / "checkpoints" / "last" / "model.safetensors")
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


def test_a_fixture_run_does_not_name_the_machine_that_wrote_it(run):
    for path in run.rglob("*"):
        if path.is_file():
            assert not MACHINE.search(path.read_bytes()), path
    facts = json.loads((run / "run.json").read_text())
    assert (facts["host"], facts["folder"]) == ("example", "/example")
    assert not {"git", "git_dirty"} & set(facts)
