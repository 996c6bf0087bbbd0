"""The parallel example under each strategy, and on two nodes, with the callbacks of digits.py unchanged.

tests/parallel/test_example.py is the quick version, with processes that start with torch already imported.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")  # the import takes a second

FULL = os.environ.get("HOOKPOINT_FAULTS") == "all"
ROOT = Path(__file__).parents[2]
LINE = r"test accuracy of the best checkpoint after 4 epochs, world size [24]: (\d+\.\d)%"


def torchrun(folder, strategy, *options):
    example = str(ROOT / "examples" / "parallel.py")
    arguments = [example, "--epochs", "4", "--strategy", strategy, "--workdir", str(folder / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def accuracy(processes):
    """Wait for all processes, and return the accuracy that the chief prints."""
    try:
        said = [process.communicate(timeout=250) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    found = re.findall(LINE, "".join(out for out, _ in said))
    assert len(found) == 1  # only the chief prints
    return float(found[0])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline", *(["data", "sharded", "tensor", "averaging", "async"] if FULL else [])])
def test_two_processes_train_digits(tmp_path, strategy):
    assert accuracy([torchrun(tmp_path, strategy, "--standalone", "--nproc-per-node", "2")]) > 97
    assert (tmp_path / "run" / "checkpoints" / "best-val-error-top1").exists()


@pytest.mark.skipif(not FULL, reason="four processes, of which two share a model: HOOKPOINT_FAULTS=all")
def test_four_processes_train_digits(tmp_path):
    assert accuracy([torchrun(tmp_path, "data-tensor", "--standalone", "--nproc-per-node", "4")]) > 97


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data", *(["sharded"] if FULL else [])])
def test_two_nodes_train_digits(tmp_path, strategy):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    assert accuracy([torchrun(tmp_path, strategy, *meeting) for _ in range(2)]) > 97
