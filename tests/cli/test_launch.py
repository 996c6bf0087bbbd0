"""`hookpoint launch`: a script in several processes."""

from __future__ import annotations

import sys

import pytest

from hookpoint.cli.launch import command as torchrun

pytest.importorskip("torch")

SCRIPT = """
import os, sys
with open(f"rank{os.environ['RANK']}", "w") as file:
    file.write(f"{os.environ['WORLD_SIZE']} {' '.join(sys.argv[1:])}")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_in_several_processes_with_its_arguments(process, script, tmp_path):
    done = process("launch", "-n", 2, "--max-restarts", 0, script, "--epochs", "3", "-n", "7", text=True)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["2 --epochs 3 -n 7"] * 2


def test_its_exit_code_says_that_a_process_failed(process, script):
    script.write_text("raise SystemExit(3)")
    assert process("launch", "-n", 2, script, text=True).returncode != 0


@pytest.mark.parametrize(
    "options", [["--nnodes", "2", "--rdzv-endpoint", "a:1"], ["--rdzv_backend=c10d"], ["--master-addr", "a"], ["--standalone"]]
)
def test_how_machines_meet_is_left_to_who_says_it(options):
    found = torchrun("2", (*options, "train.py", "--standalone"))
    assert found == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        *options,
        "train.py",
        "--standalone",
    ]


def test_options_of_the_script_are_not_torchruns():
    assert torchrun("1", ("train.py", "--nnodes", "2"))[5:] == ["--standalone", "train.py", "--nnodes", "2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0", "train.py"], "-n 0 is no number of processes; give 1 or more, or auto"),
        (["-n", "two", "train.py"], "-n two is no number of processes"),
        (["nothing.py"], "there is no script nothing.py"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_launched_is_refused(command, arguments, said):
    assert said in command("launch", *arguments, code=2).stderr
