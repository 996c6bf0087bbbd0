"""Add more noise to the samples as the model improves. Two worker processes add the noise.

With `--prove`, kill a run three times in the middle of an epoch, resume it each time, and compare it with an uninterrupted run.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hookpoint
from hookpoint import Callback, Every, HookedLoader, Replace, Run, Runner, SeededSamples
from hookpoint import callbacks as cb

Sample = tuple[Tensor, Tensor]


class Curriculum(Callback):
    """Add noise to each sample, and increase the noise after each epoch in which the accuracy is above 90%."""

    def on_sample(self, sample: Sample, settings: Mapping[str, float]) -> Replace:  # in a worker process
        point, moon = sample
        return Replace((point + settings["noise"] * torch.randn(2), moon))

    def on_epoch_end(self, run: Run) -> None:  # in the main process; takes effect in the next epoch
        settings = run.train_loader.settings
        run.log(noise=settings["noise"])
        if run.metrics["accuracy"] > 0.9:
            settings["noise"] += 0.05


def make_moons(count: int, *, seed: int) -> TensorDataset:
    """Return points on two interleaving half circles. The label of a point, 0 or 1, tells which half circle it is on."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    angle = math.pi * torch.rand(count, generator=generator) + math.pi * labels
    return TensorDataset(torch.stack([angle.cos() + labels, angle.sin() + 0.5 * labels], dim=1), labels)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float().mean()


def make_runner(workdir: str | os.PathLike[str], **options: Any) -> tuple[Runner, dict[str, Any]]:
    """Return a runner and the arguments for `fit`."""
    torch.manual_seed(0)
    curriculum = Curriculum()
    loader = HookedLoader(
        SeededSamples(make_moons(400, seed=1), seed=7),  # a resumed run adds the same noise
        batch_size=20,
        shuffle=True,
        callbacks=[curriculum],
        settings={"noise": 0.05},
        **{"num_workers": 2, "persistent_workers": True, **options},
    )
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    runner = Runner(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.02),
        nn.CrossEntropyLoss(),
        metrics={"accuracy": accuracy},
        callbacks=[curriculum, cb.ModelSaver().when(Every(steps=7))],
        workdir=workdir,
    )
    return runner, {"train": loader, "epochs": 6}


def main() -> None:
    with tempfile.TemporaryDirectory() as workdir:
        runner, arguments = make_runner(workdir)
        run = runner.fit(**arguments)
        noise, accuracies = (dict(run.monitors.get_history(name)) for name in ("noise", "accuracy"))
    for step in sorted(noise):
        print(f"step {step:3}   noise {noise[step]:.2f}  {'=' * round(100 * noise[step]):30}   accuracy {accuracies[step]:.1%}")


if __name__ == "__main__":
    if "--prove" in sys.argv:
        print(hookpoint.prove(make_runner, kill_at=[27, 65, 91]))
    else:
        main()
