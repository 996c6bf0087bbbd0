"""The run of the sharded-checkpoint tests, with everything that a model, an optimizer and callbacks may shard.

It has tied, frozen and very small weights, batch-norm statistics, two parameter groups, averaged weights, and accumulated
gradients that no step has used yet. `train_two` trains two models, each with its own optimizer, in a loop that shards them.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import torch
from torch import nn

from hookpoint import Callback, Loop, Runner, Sharded
from hookpoint import callbacks as cb

RANK = int(os.environ.get("RANK", "0"))
WIDTH = 64


class Net(nn.Module):
    """Two layers with a shared weight, a frozen layer, batch norm, and a bias with a single element."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.norm(self.frozen(self.second(self.first(inputs).relu()).relu())))


class Events(Callback):
    """Stop the run after an iteration, poison the weights of one rank, and record what is saved and loaded."""

    def __init__(self, stop_at: int = -1, poison_at: int = -1) -> None:
        super().__init__()
        self.stop_at, self.poison_at = stop_at, poison_at
        self.put_back: dict[str, str] = {}
        self.kept: dict[str, str] = {}

    def on_load(self, run: Any) -> None:
        self.put_back = digests(run)

    def on_save(self, run: Any) -> None:
        self.kept = digests(run)

    def on_train_iter_end(self, run: Any) -> None:
        if run.iteration == self.poison_at and RANK == 1:
            with torch.no_grad():
                run.model.first.weight.to_local().fill_(float("nan"))
        if run.iteration == self.stop_at:
            run.stop("it was told to", alike=True)


def train(workdir: str, *, events: Events | None = None, **options: Any) -> dict[str, Any]:
    """Train a Net to the end, or until the events stop the run; return digests of the final state."""
    torch.manual_seed(3)
    model = Net()
    inputs = torch.randn(32, WIDTH)
    groups = [
        {"params": [model.first.weight, model.first.bias, model.second.bias], "lr": 0.01},
        {"params": [*model.norm.parameters(), *model.head.parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    events = events or Events()
    averages = cb.SwapEMAWeights(0.5)
    runner = Runner(
        model,
        optimizer,
        nn.functional.mse_loss,
        callbacks=[events, averages, cb.MinSaver("loss")],
        workdir=workdir,
        accumulate=2,
        strategy=Sharded(),
        seed=1,
        extra_callbacks=[],
        monitors=[],
        **options,
    )
    run = runner.fit((inputs, inputs.sum(1, keepdim=True)), epochs=2, batch_size=4)
    return {"step": run.step, **digests(run), "averages": digest(averages.weights())}


def train_two(workdir: str, *, stop_at: int = -1) -> dict[str, Any]:
    """Train two models, each with its own optimizer, sharded by fully_shard in a custom loop."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    models = {"one": nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)), "other": nn.Linear(4, 3)}
    for model in models.values():
        fully_shard(model)
    optimizers = {
        "one": torch.optim.Adam(models["one"].parameters(), lr=0.01),
        "other": torch.optim.SGD(models["other"].parameters(), lr=0.1, momentum=0.9),
    }
    batches = [torch.randn(4, 4, generator=torch.Generator().manual_seed(number + 10 * RANK)) for number in range(6)]
    events = Events(stop_at)
    with Loop(
        [events, cb.ModelSaver()], model=models, optimizer=optimizers, workdir=workdir, extra_callbacks=[], monitors=[]
    ) as run:
        for batch in run.batches(batches):
            loss = models["other"](models["one"](batch)).square().mean()
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()
    return {"step": run.step, **digests(run)}


def digests(run: Any) -> dict[str, str]:
    """Return digests of full tensors: the weights by name, the optimizer's state, and accumulated gradients."""
    models = run.model if isinstance(run.model, dict) else {"": run.model}
    optimizers = run.optimizer if isinstance(run.optimizer, dict) else {"": run.optimizer}
    return {
        "model": digest({f"{key}{name}": one for key, model in models.items() for name, one in model.state_dict().items()}),
        "optimizer": digest(
            {
                f"{key} {number} {name}": one
                for key, optimizer in optimizers.items()
                for number, kept in optimizer.state_dict()["state"].items()
                for name, one in kept.items()
            }
        ),
        "gradients": digest(
            {name: one.grad for model in models.values() for name, one in model.named_parameters() if one.grad is not None}
        ),
    }


def digest(tensors: Any) -> str:
    """Return the SHA-256 of names and full tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.update(name.encode())
        found.update(whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
