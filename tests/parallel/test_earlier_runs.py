"""A run of an earlier release on two ranks keeps its data order to the end of the epoch."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

RUNS = Path(__file__).parents[1] / "data" / "earlier_runs"


def test_a_run_of_an_earlier_release_finishes_its_epoch_in_the_same_order(launch, tmp_path):
    with tarfile.open(RUNS / "team_in_an_epoch.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((RUNS / "team_in_an_epoch.json").read_text())
    made_with = {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}
    workdir = tmp_path / "team_in_an_epoch"
    at_epoch_end = launch(RUNS / "cases.py", "team_in_an_epoch", workdir, 2).results
    for result, wanted in zip(at_epoch_end, expected["epoch_end"]["ranks"], strict=True):
        assert result["seen"] == wanted["seen"]
        assert result["clocks"] == wanted["clocks"]
        if expected["made_with"] == made_with:
            assert result["weights"] == wanted["weights"]

    later = launch(RUNS / "cases.py", "team_in_an_epoch", workdir, 3).results
    assert sorted(index for result in later for batch in result["seen"] for index in batch) == list(range(22))
