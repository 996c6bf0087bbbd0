"""Train the network of digits.py in multiple processes, with the same callbacks and any strategy.

    torchrun --nproc-per-node 2 parallel.py --strategy sharded
    torchrun --nproc-per-node 4 parallel.py --strategy data-tensor
    hookpoint launch -n 2 parallel.py

In a single process, this script trains like digits.py. The global batch size is the same for any number of processes: each rank
gets its shard of every batch. With `tensor`, all ranks get the same images, and a wider head is split across all ranks. With
`data-tensor`, the two ranks of a pair get the same images, and the head is split across the pair. With `pipeline`, all ranks
get the same images and run different layers.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from digits import Distort, digits, everything_else, residual_network
from torch import nn

import hookpoint
from hookpoint import Runner

HEAD: dict[str, Any] = {"4.2": "colwise", "4.4": "rowwise"}  # torch has no parallel styles for convolutions
STRATEGIES: dict[str, Any] = {
    "auto": "auto",
    "data": hookpoint.DataParallel(),
    "sharded": hookpoint.Sharded(),
    "tensor": hookpoint.TensorParallel(HEAD),
    "data-tensor": hookpoint.TensorParallel(HEAD, size=2),
    "pipeline": hookpoint.PipelineParallel(split=(3,)),
    "averaging": hookpoint.ParameterAveraging(period=8),
    "async": hookpoint.AsyncSGD(staleness=4),
}


def with_wide_head(model: nn.Module) -> nn.Module:
    """Replace the head with two layers that are large enough to split: they have nearly as many weights as the convolutions."""
    model.set_submodule(
        "4", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 10))
    )
    return model


def train(workdir: str = "runs/parallel", epochs: int = 40, strategy: str = "auto", resume: str = "auto") -> float:
    train_data, val, test = digits()
    torch.manual_seed(0)
    model = residual_network() if "tensor" not in strategy else with_wide_head(residual_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        callbacks=[Distort(), *everything_else(val, epochs)],
        workdir=workdir,
        name="parallel",
        resume=resume,
        seed=0,
        strategy=STRATEGIES[strategy],
    )
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    ranks_per_batch = {"tensor": processes, "pipeline": processes, "data-tensor": min(processes, 2)}.get(strategy, 1)
    run = runner.fit(train_data, epochs=epochs, batch_size=32 * ranks_per_batch // processes)

    model.load_state_dict(hookpoint.load_weights(f"{workdir}/checkpoints/best-val-error-top1"))
    accuracy = (torch.cat(runner.predict(test, batch_size=90)).argmax(1) == test[1]).float().mean().item()
    if run.is_chief:
        print(f"test accuracy of the best checkpoint after {epochs} epochs, world size {processes}: {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", default="runs/parallel")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--strategy", default="auto", choices=list(STRATEGIES))
    parser.add_argument("--resume", default="auto", help="auto, never, must, or a checkpoint path")
    train(**vars(parser.parse_args()))
