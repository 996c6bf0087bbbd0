"""The subject of the fault tests: a small training run, with a Runner or in the user's own loop.

It uses every kind of random number and state that a real run has. The model has dropout and batch norm. The data is shuffled,
and reading a sample draws from the generators of Python, NumPy and torch. The learning rate changes with each step, an epoch
ends with a validation, checkpoints are saved every other step and at each new best validation, old checkpoints are deleted,
and the default monitors are on. There are 32 steps in four epochs of 8; a step is one batch, or two.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hookpoint import Callback, Every, Loop, Runner
from hookpoint import callbacks as cb
from hookpoint.engine.data.seeded_samples import SeededSamples
from hookpoint.storage.json_rows import read_scalars
from hookpoint.storage.load_weights import load_weights

EPOCHS, STEPS_PER_EPOCH, BATCH = 4, 8, 4
STEPS = EPOCHS * STEPS_PER_EPOCH


@dataclass(frozen=True)
class Variant:
    """How the run is set up. `fp16`, with its scaler, and `plateau`, with ReduceLROnPlateau, need the Runner.

    With `plateau`, validation runs in every other epoch; with `val_steps`, after that many steps, within epochs. The order of
    the data comes from torch's global generator, or from the loader's `own_generator`. With `default_saver`, the saver has no
    arguments: it saves in the background.
    """

    kind: str = "runner"  # or "loop"
    accumulate: int = 1
    workers: int = 0
    in_background: bool = False
    default_saver: bool = False
    fp16: bool = False
    plateau: bool = False
    own_generator: bool = False
    val_steps: int = 0
    save_every: int = 2

    def __str__(self) -> str:
        return "-".join(
            [
                self.kind,
                *([f"accumulate{self.accumulate}"] if self.accumulate > 1 else []),
                *([f"workers{self.workers}"] if self.workers else []),
                *(["background"] if self.in_background else []),
                *(["default"] if self.default_saver else []),
                *(["fp16"] if self.fp16 else []),
                *(["plateau"] if self.plateau else []),
                *(["own_generator"] if self.own_generator else []),
                *([f"val_steps{self.val_steps}"] if self.val_steps else []),
                *([f"every{self.save_every}"] if self.save_every != 2 else []),
            ]
        )


class Augmented(Dataset[Any]):
    """Samples with noise from all three generators, added when they are read."""

    def __init__(self, size: int) -> None:
        numbers = torch.Generator().manual_seed(1)
        self.features = torch.randn(size, 6, generator=numbers)
        self.labels = torch.randint(0, 3, (size,), generator=numbers)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(6) * 0.1 * random.random() + float(numpy.random.normal()) * 0.01
        return self.features[index] + noise, self.labels[index]


class Ledger(Callback):
    """Save a digest of all batches and learning rates in the checkpoint, and append each step's digest to a trace file.

    No resume cuts the trace, so it lists the inputs of every step of every process, including repeated steps.
    """

    def __init__(self, trace: str | os.PathLike[str], optimizer: Any) -> None:
        super().__init__()
        self._trace = open(trace, "a")  # noqa: SIM115 - open until the process ends
        self._optimizer = optimizer
        self.chain = ""

    def on_train_iter_begin(self, run: Any) -> None:
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self.chain = digest([self.chain, run.batch, rates])
        self._trace.write(f"{run.iteration} {digest([run.batch, rates])}\n")
        self._trace.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"chain": self.chain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chain = state["chain"]


@dataclass
class Parts:
    """The objects of a run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rates: Any
    train: DataLoader[Any]
    val: DataLoader[Any]
    callbacks: list[Any]
    ledger: Ledger


def make(variant: Variant, trace: str | os.PathLike[str], more: list[Any]) -> Parts:
    """Make model, data and callbacks, identical in each call. `more` are the caller's callbacks; they come first."""
    seed()
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rates: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    if variant.plateau:
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
    data: Any = Augmented(STEPS_PER_EPOCH * variant.accumulate * BATCH)
    data = SeededSamples(data, seed=3) if variant.workers else data
    generator = torch.Generator().manual_seed(7) if variant.own_generator else None
    train = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=variant.workers, generator=generator)
    held_out = Augmented(12)
    val = DataLoader(TensorDataset(held_out.features, held_out.labels), batch_size=BATCH)
    ledger = Ledger(trace, optimizer)
    saver = cb.ModelSaver() if variant.default_saver else cb.ModelSaver(2, None, async_save=variant.in_background)
    saver = saver.when(Every(steps=variant.save_every))
    best = cb.MinSaver("val_loss")
    best = best.when(Every(steps=variant.val_steps)) if variant.val_steps else best
    return Parts(model, optimizer, rates, train, val, [*more, saver, best, ledger], ledger)


def seed() -> None:
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)


def train(
    workdir: str | os.PathLike[str],
    trace: str | os.PathLike[str],
    variant: Variant,
    *,
    more: list[Any] | None = None,
    reached: Callable[[str], None] = lambda site: None,
    **options: Any,
) -> dict[str, str]:
    """Train to the end and return the results. In the user's own loop, `reached` is called after each backward."""
    parts = make(variant, trace, more or [])
    {"runner": _with_runner, "loop": _with_loop}[variant.kind](workdir, variant, parts, reached, options)
    return result(workdir, parts)


def steep_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradients overflow until the scaler has found its scale."""
    return 64.0 * nn.functional.cross_entropy(outputs, targets)


def _with_runner(workdir: Any, variant: Variant, parts: Parts, reached: Any, options: dict[str, Any]) -> None:
    runner = Runner(
        parts.model,
        parts.optimizer,
        steep_loss if variant.fp16 else nn.CrossEntropyLoss(),
        lr_scheduler=parts.rates,
        lr_scheduler_on="epoch" if variant.plateau else "step",
        callbacks=parts.callbacks,
        metrics={"acc": lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()},
        workdir=workdir,
        accumulate=variant.accumulate,
        precision="fp16" if variant.fp16 else "32",
        log_every=3,
        **options,
    )
    every = Every(steps=variant.val_steps) if variant.val_steps else Every(epochs=2 if variant.plateau else 1)
    runner.fit(parts.train, parts.val, epochs=EPOCHS, validate_every=every)


def _with_loop(workdir: Any, variant: Variant, parts: Parts, reached: Any, options: dict[str, Any]) -> None:
    model, optimizer, criterion = parts.model, parts.optimizer, nn.CrossEntropyLoss()

    def validate(run: Any) -> None:
        model.eval()
        with torch.no_grad():
            for inputs, targets in run.batches(parts.val, mode="val"):
                run.log(loss=criterion(model(inputs), targets))
        model.train()

    loop = Loop(
        parts.callbacks,
        model=model,
        optimizer=optimizer,
        lr_scheduler=parts.rates,
        workdir=workdir,
        name="own loop",
        log_every=3,
        **options,
    )
    with loop as run:
        for _ in run.epochs(EPOCHS):
            for inputs, targets in run.batches(parts.train):
                loss = criterion(model(inputs), targets)
                (loss / variant.accumulate).backward()
                reached("on_backward_end")
                if (run.batch_idx + 1) % variant.accumulate == 0:
                    optimizer.step()
                    parts.rates.step()
                    optimizer.zero_grad()
                run.log(loss=loss)
                if variant.val_steps and run.step % variant.val_steps == 0:
                    validate(run)
            if not variant.val_steps:
                validate(run)


# Results


def result(workdir: str | os.PathLike[str], parts: Parts) -> dict[str, str]:
    """Return digests of everything that a run ends with, except times."""
    best = Path(workdir, "checkpoints", "best-val_loss")
    return {
        "weights": digest(parts.model.state_dict()),
        "optimizer": digest(parts.optimizer.state_dict()),
        "rates": digest(parts.rates.state_dict()),
        "generators": digest([random.getstate(), numpy.random.get_state(), torch.get_rng_state()]),
        "batches": parts.ledger.chain,
        "best": digest(load_weights(best) if best.exists() else None),
        **records(workdir),
    }


def records(workdir: str | os.PathLike[str]) -> dict[str, str]:
    """Return digests of the logged values in both kinds of files."""
    scalars = Path(workdir, "scalars.jsonl")
    read = read_scalars(scalars) if scalars.is_file() else []
    rows = [{key: value for key, value in row.items() if key != "time"} for row in read]
    return {"scalars": digest(rows), "tensorboard": digest(sorted(curves(workdir)))}


def curves(workdir: str | os.PathLike[str]) -> Iterator[tuple[str, int, float]]:
    """Yield the name, step and value of each scalar in TensorBoard's files."""
    for file in sorted(Path(workdir, "tensorboard").glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                yield value.tag, event.step, value.tensor.float_val[0]


def digest(value: Any) -> str:
    """Return the SHA-256 of a value, exact to the last bit; tensors and arrays are hashed by their bytes."""
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, dict):
        value = [[key, one] for key, one in value.items()]
    if isinstance(value, list | tuple):
        found.update(b"[%d" % len(value))
        for one in value:
            _feed(found, one)
    elif isinstance(value, torch.Tensor | numpy.ndarray):
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        found.update(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    elif isinstance(value, float):
        found.update(b"f" + struct.pack("<d", value))
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())
