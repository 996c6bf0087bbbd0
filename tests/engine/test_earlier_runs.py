"""Runs of an earlier release resume and end with the same results as in that release."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import hookpoint

RUNS = Path(__file__).parents[1] / "data" / "earlier_runs"
CASES = ["runner_in_an_epoch", "runner_between_epochs", "runner_with_best_values", "runner_with_groups", "loop_in_an_epoch"]


@pytest.fixture(autouse=True)
def threads_kept():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def earlier(tmp_path):
    """Unpack the folder of a run; return it with the run's results."""

    def unpack(case):
        with tarfile.open(RUNS / f"{case}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / case, json.loads((RUNS / f"{case}.json").read_text())

    return unpack


def resumed(case, workdir, epochs):
    found = {"__name__": "cases"}
    exec(compile((RUNS / "cases.py").read_text(), "cases.py", "exec"), found)
    return found[case](workdir, epochs)


def check(result, expected):
    assert result["seen"] == expected["seen"]
    assert result["clocks"] == expected["clocks"]
    assert result["weights"].keys() == expected["weights"].keys()
    for name, bits in expected["weights"].items():  # the last bits depend on the CPU, even with the same torch
        assert floats(result["weights"][name]) == pytest.approx(floats(bits), rel=1e-5, abs=1e-7)


def floats(bits):
    return [number for (number,) in struct.iter_unpack("<d", bytes.fromhex(bits))]


@pytest.mark.filterwarnings("ignore::hookpoint.HookpointWarning")
@pytest.mark.parametrize("until", ["epoch_end", "run_end"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_of_an_earlier_release_resumes_to_the_same_result(case, until, earlier):
    workdir, expected = earlier(case)
    check(resumed(case, workdir, expected[until]["epochs"]), expected[until])


@pytest.mark.parametrize("until", ["epoch_end", "run_end"])
def test_a_run_of_an_earlier_release_resumes_without_torch(until, earlier):
    workdir, expected = earlier("loop_without_torch")
    command = [sys.executable, str(RUNS / "cases.py"), "loop_without_torch", str(workdir), str(expected[until]["epochs"])]
    paths = {**os.environ, "PYTHONPATH": str(Path(hookpoint.__file__).parents[1])}
    done = subprocess.run(command, env=paths, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert {name: result[name] for name in ("seen", "clocks", "weights")} == {
        name: expected[until][name] for name in ("seen", "clocks", "weights")
    }


def test_a_run_of_an_earlier_release_resumes_with_another_batch_size(earlier, caplog):
    workdir, expected = earlier("runner_in_an_epoch")
    source = (
        (RUNS / "cases.py").read_text().replace("DataLoader(data, batch_size=4, shuffle=True)", "DataLoader(data, 8, True)")
    )
    found = {"__name__": "cases"}
    exec(compile(source, "cases.py", "exec"), found)
    result = found["runner_in_an_epoch"](workdir, 2)
    rest = [index for batch in expected["epoch_end"]["seen"] for index in batch]
    assert result["seen"] == [rest[:8], rest[8:]]
    assert "the batch size is 8, but was 4" in caplog.text
