"""A small training run with everything that a captured step could get wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hookpoint
from hookpoint import Callback, Every, Runner
from hookpoint.callbacks import GradientStats, HyperParamSetterWithFunc, SwapEMAWeights

SAMPLES, BATCH, CLASSES = 410, 16, 4  # 26 batches, the last one smaller


class Net(nn.Module):
    """A small network with dropout and batch norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class LoggingNet(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        hookpoint.log("hidden", hidden.mean())
        return self.head(hidden)


class Losses(Callback):
    """Keep the loss of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def on_train_iter_end(self, run: Any) -> None:
        self.losses.append(run.loss.detach().clone())


@dataclass
class Result:
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    losses: list[torch.Tensor]
    logged: dict[str, list[tuple[int, float]]]
    replays: int = 0
    captures: int = 0


def data() -> tuple[DataLoader, DataLoader]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 8, generator=generator)
    targets = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    train = TensorDataset(inputs, targets)
    return DataLoader(train, BATCH, pin_memory=True), DataLoader(train, 64)


def optimizer_of(kind: str, parameters: Any) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.05, fused=True, capturable=True)
    if kind == "capturable":
        return torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.05, fused=False, capturable=True)
    return torch.optim.SGD(parameters, lr=0.03, momentum=0.9, weight_decay=0.01, fused=True)


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the captures and replays of CUDA graphs."""
    counts = {"captures": 0, "replays": 0}
    graph = torch.cuda.CUDAGraph
    replay, capture = graph.replay, graph.capture_begin

    def counted_replay(self: Any) -> None:
        counts["replays"] += 1
        replay(self)

    def counted_capture(self: Any, *args: Any, **kwargs: Any) -> None:
        counts["captures"] += 1
        capture(self, *args, **kwargs)

    graph.replay, graph.capture_begin = counted_replay, counted_capture
    try:
        yield counts
    finally:
        graph.replay, graph.capture_begin = replay, capture


def full_training(
    *,
    kind: str = "adamw",
    epochs: int = 4,
    scheduler: bool = True,
    model: nn.Module | None = None,
    extras: bool = True,
    callbacks: tuple[Any, ...] = (),
    **options: Any,
) -> Result:
    """Train with a scheduler per step, a setter, EMA, gradient statistics and validation within epochs."""
    torch.manual_seed(3)
    model = Net() if model is None else model
    model.to("cuda")
    optimizer = optimizer_of(kind, [parameter for parameter in model.parameters() if parameter.requires_grad])
    losses = Losses()
    listed: list[Any] = [losses, *callbacks]
    if extras:
        listed.append(HyperParamSetterWithFunc("weight_decay", lambda epoch, value: 0.02 if epoch == 3 else None))
        listed.append(SwapEMAWeights(decay=0.9))
        listed.append(GradientStats(every=10))
    by_step = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=90) if scheduler else None
    train, val = data()
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        lr_scheduler=by_step,
        lr_scheduler_on="step",
        callbacks=listed,
        extra_callbacks=options.pop("extra_callbacks", []),
        monitors=options.pop("monitors", []),
        log_every=5,
        seed=11,
        **options,
    )
    with counted() as counts:
        run = runner.fit(train, val if extras else None, epochs=epochs, validate_every=Every(steps=9) if extras else None)
    names = [name for name in run.metrics if not name.startswith("time")]
    logged = {name: run.monitors.get_history(name) for name in names}
    state = optimizer.state_dict()
    return Result(dict(model.state_dict()), state, losses.losses, logged, counts["replays"], counts["captures"])


def assert_same(one: Result, other: Result) -> None:
    """Check that weights, optimizer state, losses and logged values are the same, bit for bit."""
    assert_equal(one.weights, other.weights, "weights")
    assert_equal(one.optimizer, other.optimizer, "optimizer")
    assert_equal(one.losses, other.losses, "losses")
    assert_equal(one.logged, other.logged, "logged")


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, torch.Tensor):
        same = one.shape == other.shape and torch.equal(one.cpu(), other.cpu())
        assert same, f"{where}: {one} is not {other}"
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), f"{where}: {sorted(one)} are not {sorted(other)}"
        for key in one:
            assert_equal(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), f"{where}: {len(one)} items, not {len(other)}"
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_equal(left, right, f"{where}/{number}")
    else:
        assert one == other or one != one, f"{where}: {one!r} is not {other!r}"
