"""A Loop over a loader prepared by Accelerate resumes at the same batch, with the same random numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="accelerate is not installed: make test-adapters")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hookpoint import Loop
from hookpoint import callbacks as cb

ROOT = Path(__file__).parents[2]
BATCHES = 6
CONFIGURATIONS = {
    "seedable": {"use_seedable_sampler": True},
    "dispatched": {"dispatch_batches": True},
    "split": {"split_batches": True},
}
LOADERS = {
    "in order": {},
    "workers": {"shuffle": True, "num_workers": 1},
    "persistent workers": {"shuffle": True, "num_workers": 1, "persistent_workers": True},
}


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(22))


def prepared(kind):
    AcceleratorState._reset_state(reset_partial_state=True)  # shared by all objects, including those of earlier tests
    GradientState._reset_state()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**CONFIGURATIONS.get(kind, {})))
    if kind == "stream":
        return accelerator.prepare(DataLoader(Stream(), 4))
    data, options = TensorDataset(torch.arange(22)), LOADERS.get(kind, {"shuffle": True})
    return accelerator.prepare(DataLoader(data, 4, **options))


def train(kind, workdir=None, stop_after=None):
    """Return the batches and a random number for each; with a workdir, save when the run stops after `stop_after` batches."""
    loader, seen = prepared(kind), []
    savers = [] if workdir is None else [cb.ModelSaver()]
    with Loop(savers, model=torch.nn.Linear(1, 1), workdir=workdir, extra_callbacks=[], monitors=[], control=False) as run:
        for _ in run.epochs(3):
            for batch in run.batches(loader):
                values = batch if isinstance(batch, torch.Tensor) else batch[0]
                seen.append((values.tolist(), torch.rand(1).item()))
                if len(seen) == stop_after:
                    run.stop("enough")
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [2, BATCHES, 9])
@pytest.mark.parametrize("kind", ["shuffled", "stream", *CONFIGURATIONS, *LOADERS])
def test_a_run_resumes_at_the_same_batch(kind, stop_after, tmp_path):
    whole = train(kind)
    assert len(whole) == 3 * BATCHES
    assert train(kind, tmp_path, stop_after) + train(kind, tmp_path) == whole


SCRIPT = """
import json, sys, torch
from pathlib import Path
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from hookpoint import Loop, callbacks as cb

folder, name, stop_after = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model, seen = torch.nn.Linear(1, 1), []
loader = DataLoader(TensorDataset(torch.arange(44).float().unsqueeze(1)), 4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4), loader)
savers, workdir = ([], None) if name == "whole" else ([cb.ModelSaver()], folder / "run")
parts = {"model": accelerator.unwrap_model(model), "optimizer": optimizer.optimizer}
with Loop(savers, **parts, workdir=workdir, extra_callbacks=[], monitors=[], control=False) as run:
    for _ in run.epochs(3):
        for (inputs,) in run.batches(loader):
            accelerator.backward(model(inputs).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            seen.append([run.world_size, inputs.flatten().tolist(), torch.rand(1).item()])
            if len(seen) == stop_after:
                run.stop("enough")
weights = [tensor.tolist() for tensor in parts["model"].parameters()]
(folder / f"{name}-{accelerator.process_index}.json").write_text(json.dumps([seen, weights]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_resume_at_the_same_batches(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(tmp_path / "train.py"), str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name, stop_after in (("whole", 0), ("first", 8), ("rest", 0)):
        command = [sys.executable, *launch, name, str(stop_after)]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        whole, first, rest = (json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for name in ("whole", "first", "rest"))
        assert first[0] + rest[0] == whole[0]
        assert rest[1] == whole[1]
        assert whole[0][0][0] == 2
