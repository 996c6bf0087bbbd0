"""A killed run that another trainer resumes from its own checkpoint ends with the same results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.adapters.differences import listed
from tests.adapters.installed import installed_hosts
from tests.adapters.killed import trained
from tests.adapters.scripts import Fit

HOSTS = installed_hosts()
ROOT = Path(__file__).parents[2]
SCRIPTS = {"epoch": "resume between epochs", "batch": "resume in an epoch", "validation": "resume after the validation"}
PLACES = [
    pytest.param(name, place, id=f"{name}-{place}")
    for name, host in HOSTS.items()
    for place, script in SCRIPTS.items()
    if script not in host.CANNOT or place == "batch"  # a host that resumes only between epochs repeats the epoch
]
OF_THE_CLOCK = ("time", "at", "elapsed")


def records(workdir):
    """Return the records of a run, without values that depend on the time."""
    lines = [json.loads(line) for line in (workdir / "scalars.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train_runtime" not in line]  # transformers: the time since the resume
    return [{name: value for name, value in line.items() if name not in OF_THE_CLOCK} for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_a_killed_run_ends_with_the_same_results(name, place, tmp_path):
    host, folder = HOSTS[name], tmp_path / "killed"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.adapters.killed", name, place, str(folder)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    fit = Fit(epochs=9, folder=tmp_path / "whole", workdir=tmp_path / "whole" / "run")
    whole, weights = trained(host, fit)
    fit = replace(fit, resume_at=place, is_killed=True, folder=folder, workdir=folder / "run")
    resumed, resumed_weights = trained(host, fit)
    assert whole.end[:4] == (4, 12, 12, 40)
    assert resumed.end == whole.end
    assert resumed_weights == weights
    if SCRIPTS[place] in listed(name, version(getattr(host, "DISTRIBUTION", host.PACKAGE))):
        return  # after a resume, this version validates at another place
    assert resumed.epochs == whole.epochs[0 if place == "validation" else 1 :]
    assert records(folder / "run") == records(tmp_path / "whole" / "run")
