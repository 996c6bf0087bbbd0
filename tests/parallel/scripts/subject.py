"""The run of the tests with several ranks: small, but with everything that a real run draws and keeps.

It has dropout, batch norm, samples augmented with numbers from two generators, Adam with a learning rate that changes at each
step, a validation in each epoch, and checkpoints every other step and of the best epoch. It is a Runner with a strategy, or
a custom loop around DistributedDataParallel.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from hookpoint import (
    AsyncSGD,
    Callback,
    DataParallel,
    Every,
    Loop,
    MainCallback,
    ParameterAveraging,
    Runner,
    Sharded,
    TensorParallel,
)
from hookpoint import callbacks as cb
from hookpoint.storage.json_rows import read_scalars

SAMPLES, BATCH, EPOCHS = 44, 4, 3
PLAN: Any = {"0": "colwise", "4": "rowwise"}
STRATEGIES: dict[str, Any] = {
    "data": DataParallel,
    "sharded": Sharded,
    "tensor": lambda: TensorParallel(PLAN),
    "data-tensor": lambda: TensorParallel(PLAN, size=2),
    "averaging": lambda: ParameterAveraging(period=4),
    "async": lambda: AsyncSGD(staleness=2),
}
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Augmented(Dataset[Any]):
    """Samples with random changes on each read; each includes its index."""

    def __init__(self) -> None:
        numbers = torch.Generator().manual_seed(1)
        self.features = torch.randn(SAMPLES, 6, generator=numbers)
        self.labels = torch.randint(0, 3, (SAMPLES,), generator=numbers)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.features[index] + torch.randn(6) * 0.1 * random.random(), self.labels[index], index


class Cut(Exception):
    """Raised to interrupt a run on all ranks, as a kill would: nothing more is saved."""


class Ledger(Callback):
    """Keep the samples that this rank has seen, by epoch, in the checkpoint; stop or interrupt the run on request."""

    per_rank_state = True

    def __init__(self, stop_at: int = -1, fail_at: int = -1, trace: str = "", pids: str = "") -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.steps: list[int] = []
        self._stop_at, self._fail_at, self._trace, self._pids = stop_at, fail_at, trace, pids

    def on_run_begin(self, run: Any) -> None:
        if not run.resuming:
            self.seen = []
        if self._pids:
            Path(self._pids, f"rank{run.rank}").write_text(str(os.getpid()))

    def on_train_iter_end(self, run: Any) -> None:
        self.seen.append([run.epoch, *run.batch[2].tolist()])
        self.steps.append(run.step)
        if self._trace:
            with open(self._trace, "a") as trace:
                trace.write(f"{json.dumps(self.seen[-1])}\n")
        if run.step == self._stop_at:
            run.stop("it was told to", alike=True)
        if run.step == self._fail_at:
            raise Cut

    def state_dict(self) -> dict[str, Any]:
        return {"seen": [list(one) for one in self.seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Main(MainCallback):
    """Do not pass the index of each sample to the model."""

    def on_iter_forward(self, run: Any) -> None:
        inputs, run.targets = run.batch[:2]
        run.outputs = run.model(inputs)
        run.loss = run.criterion(run.outputs, run.targets)


def train(
    kind: str,
    workdir: str,
    *,
    more: tuple[Any, ...] = (),
    ledger: Ledger | None = None,
    norm: bool = True,
    epochs: int = EPOCHS,
    every: int = 2,
    **options: Any,
) -> dict[str, Any]:
    """Train to the end, or until the ledger stops the run; return the exact results and the samples seen.

    Without `norm`, a batch may be a single sample. Checkpoints take most of the time; `every` is the number of steps between
    them.
    """
    random.seed(5)
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 12), nn.BatchNorm1d(12) if norm else nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3)
    )
    ledger = ledger or Ledger()
    data, criterion = Augmented(), nn.CrossEntropyLoss()
    val = DataLoader(TensorDataset(data.features[:10], data.labels[:10]), batch_size=BATCH)
    callbacks = [ledger, *more, cb.ModelSaver(2).when(Every(steps=every)), cb.MinSaver("val_loss")]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if kind == "loop":
        run = _loop(workdir, model, optimizer, criterion, data, val, callbacks, epochs, options)
    else:
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        strategy: Any = STRATEGIES[kind]()
        runner = Runner(
            model,
            optimizer,
            criterion,
            main=Main(),
            lr_scheduler=rates,
            lr_scheduler_on="step",
            callbacks=callbacks,
            workdir=workdir,
            strategy=strategy,
            log_every=3,
            seed=7,
            extra_callbacks=[],
            **options,
        )
        run = runner.fit(DataLoader(data, batch_size=BATCH, shuffle=True), val, epochs=epochs)
    return {
        "step": run.step,
        "epoch": run.epoch,
        "weights": digest([_whole(one) for one in model.state_dict().values()]),
        "optimizer": digest([_whole(value) for kept in optimizer.state.values() for value in kept.values()]),
        "rate": optimizer.param_groups[0]["lr"],
        "generators": digest([torch.get_rng_state(), torch.tensor(random.getstate()[1])]),
        "seen": ledger.seen,
        "metrics": {name: run.metrics[name] for name in sorted(run.metrics)},
        "scalars": _scalars(workdir) if RANK == 0 else "",
        "steps": ledger.steps,
        "stop": run.stop_reason,
    }


def _loop(
    workdir: Any,
    model: Any,
    optimizer: Any,
    criterion: Any,
    data: Any,
    val: Any,
    callbacks: Any,
    epochs: int,
    options: dict[str, Any],
) -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized() and "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
    is_shared = dist.is_initialized()
    called = DistributedDataParallel(model) if is_shared else model
    random.seed(RANK)
    torch.manual_seed(RANK)
    sampler = DistributedSampler(data, WORLD, RANK, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    loop = Loop(callbacks, model=called, optimizer=optimizer, workdir=workdir, log_every=3, extra_callbacks=[], **options)
    with loop as run:
        for epoch in run.epochs(epochs):
            sampler.set_epoch(epoch)
            called.train()
            for inputs, targets, _ in run.batches(loader):
                # Two batches make a step; with an odd number of batches, the last one makes a step alone.
                is_step = run.batch_idx % 2 == 1 or run.batch_idx + 1 == len(loader)
                with nullcontext() if is_step or not is_shared else called.no_sync():
                    loss = criterion(called(inputs), targets)
                    loss.backward()
                run.log(loss=loss)
                if is_step:
                    optimizer.step()
                    optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                for inputs, targets in run.batches(val, mode="val"):
                    run.log(loss=criterion(model(inputs), targets))
    return run


def digest(values: list[torch.Tensor]) -> str:
    """Return the SHA-256 of tensors to the last bit."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _whole(value: Any) -> torch.Tensor:
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)
    return whole


def _scalars(workdir: str) -> str:
    rows = [{key: value for key, value in row.items() if key != "time"} for row in read_scalars(Path(workdir, "scalars.jsonl"))]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


if __name__ == "__main__":
    given = json.loads(os.environ["GIVEN"])
    ledger_of_run = Ledger(pids=given.pop("pids"))
    ended = train(**given, ledger=ledger_of_run)
    Path(os.environ["RESULTS"], f"rank{RANK}.json").write_text(json.dumps(ended))
