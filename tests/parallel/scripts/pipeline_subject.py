"""The run of the pipeline tests: small, but with everything that a real run draws and keeps.

It has dropout, batch norm, batches that a callback changes randomly, Adam with a learning rate that changes at each step, a
short last batch, averaged weights, a validation in each epoch, and checkpoints every other step and of the best epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hookpoint import Callback, Every, PipelineParallel, Runner
from hookpoint import callbacks as cb

torch.set_num_threads(1)
RANK = int(os.environ.get("RANK", "0"))


class Noise(Callback):
    """Change the inputs and the order of a batch randomly; all ranks must draw the same numbers."""

    def __init__(self, pids: str = "") -> None:
        super().__init__()
        self._pids = pids

    def on_run_begin(self, run: Any) -> None:
        if self._pids:
            Path(self._pids, f"rank{run.rank}").write_text(str(os.getpid()))

    def on_train_iter_begin(self, run: Any) -> None:
        inputs, targets = run.batch
        order = torch.randperm(len(inputs))
        run.batch = inputs[order] + 0.1 * torch.randn(inputs.shape), targets[order]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU()),
        nn.Dropout(0.3),
        nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Tanh()),
        nn.Linear(8, 3),
    )


def data(samples: int = 44) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(samples, 6, generator=numbers), torch.randint(0, 3, (samples,), generator=numbers)


def train(
    workdir: str,
    *,
    split: tuple[Any, ...] = ("2.1",),
    more: tuple[Any, ...] = (),
    pids: str = "",
    epochs: int = 3,
    every: int = 2,
    **options: Any,
) -> dict[str, Any]:
    """Train to the end, or until a callback stops the run; return the exact results."""
    random.seed(5)
    torch.manual_seed(5)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = cb.SwapEMAWeights(0.9)
    given = data()
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5])),
        lr_scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
        lr_scheduler_on="step",
        callbacks=[Noise(pids), *more, average, cb.ModelSaver(2).when(Every(steps=every)), cb.MinSaver("val_loss")],
        workdir=workdir,
        strategy=PipelineParallel(split, microbatches=2),
        log_every=3,
        seed=7,
        extra_callbacks=[],
        **options,
    )
    loader = DataLoader(TensorDataset(*given), batch_size=8, shuffle=True)
    run = runner.fit(loader, (given[0][:10], given[1][:10]), epochs=epochs, batch_size=4)
    return {
        "step": run.step,
        "weights": digest(model.state_dict().values()),
        "optimizer": digest(value for kept in optimizer.state.values() for value in kept.values()),
        "averages": digest(average.average.averages.values()),
        "rate": optimizer.param_groups[0]["lr"],
        "generator": digest([torch.get_rng_state()]),
        "metrics": {name: run.metrics[name] for name in sorted(run.metrics)},
        "stop": run.stop_reason,
        "predicted": digest(runner.predict((given[0][:7],), batch_size=4)),
    }


def digest(tensors: Any) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in tensors)).hexdigest()


if __name__ == "__main__":
    result = train(**json.loads(os.environ["GIVEN"]))
    Path(os.environ["RESULTS"], f"rank{RANK}.json").write_text(json.dumps(result))
