"""A killed run resumes bit for bit, with checkpoints that work for graphs and for eager steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from tests.gpu.training import assert_equal

SCRIPT = """
import os, signal, sys
import torch
from hookpoint import Callback, Every
from hookpoint.callbacks import ModelSaver
from tests.gpu.training import full_training

workdir, kill_at, options = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])

class Dies(Callback):
    def on_train_iter_end(self, run):
        if run.iteration == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

saver = ModelSaver().when(Every(steps=7))
result = full_training(epochs=3, workdir=workdir, callbacks=(saver, Dies()), **options)
torch.save({"weights": result.weights, "optimizer": result.optimizer}, os.path.join(workdir, "result.pt"))
"""


def run(workdir: str, options: dict[str, Any], kill_at: int = -1) -> Any:
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(root / "src"), str(root)])
    command = [sys.executable, "-c", SCRIPT, workdir, str(kill_at), repr(options)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if kill_at >= 0:
        assert done.returncode == -signal.SIGKILL, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return torch.load(Path(workdir) / "result.pt")


def check(first: dict[str, Any], second: dict[str, Any], kill_at: int) -> None:
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as killed:
        expected = run(whole, first)
        run(killed, first, kill_at)
        assert_equal(run(killed, second), expected)


def test_a_run_killed_within_an_epoch_resumes_bit_for_bit() -> None:
    check({"cuda_graph": True}, {"cuda_graph": True}, 40)


def test_a_killed_run_with_compile_and_graph_resumes_bit_for_bit() -> None:
    both = {"compile": True, "cuda_graph": True}
    check(both, both, 33)


def test_an_eager_run_resumes_from_a_checkpoint_of_a_graph_run() -> None:
    check({"cuda_graph": True}, {}, 40)


def test_a_graph_run_resumes_from_a_checkpoint_of_an_eager_run() -> None:
    check({}, {"cuda_graph": True}, 45)
