"""Train a small classifier with Runner on generated data: two moons."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hookpoint import Callback, Run, Runner


def make_moons(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return points on two interleaving half circles, and the half circle of each point."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (count,), generator=generator)
    angle = math.pi * torch.rand(count, generator=generator) + math.pi * labels
    circles = torch.stack([angle.cos() + labels, angle.sin() + 0.5 * labels], dim=1)
    return circles + 0.15 * torch.randn(count, 2, generator=generator), labels


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float().mean()


class EarlyStop(Callback):
    """Stop the run when a metric has not decreased for `patience` epochs."""

    def __init__(self, metric: str, *, patience: int) -> None:
        self.metric, self.patience = metric, patience
        self.reads = (metric,)

    def on_run_begin(self) -> None:
        self.best, self.waited = math.inf, 0

    def on_epoch_end(self, run: Run) -> None:
        value = run.metrics[self.metric]
        self.best, self.waited = (value, 0) if value < self.best else (self.best, self.waited + 1)
        if self.waited >= self.patience:
            run.stop(f"{self.metric} has not decreased for {self.waited} epochs")


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    runner = Runner(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        metrics={"accuracy": accuracy},
        lr_scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
        callbacks=[EarlyStop("val_loss", patience=3)],
        seed=0,
    )
    train, val, test = make_moons(1000, seed=1), make_moons(300, seed=2), make_moons(1000, seed=3)

    run = runner.fit(train, val, epochs=50, batch_size=50)  # the default callbacks print each epoch to stderr

    best_step, best = min(run.monitors.get_history("val_loss"), key=lambda entry: entry[1])
    results = runner.validate(test, batch_size=250)
    print(f"stopped in epoch {run.epoch} of {run.max_epochs}, after {run.step} steps")
    print(f"lowest val_loss {best:.3f}, at step {best_step}; learning rate now {run.hyper['learning_rate']:.4f}")
    print(f"test accuracy: {results['val_accuracy']:.1%}")

    outputs = torch.cat(runner.predict((test[0][:4],), batch_size=2))
    for (x, y), moon in zip(test[0][:4].tolist(), outputs.argmax(dim=1).tolist(), strict=True):
        print(f"  ({x:5.2f}, {y:5.2f}) is on moon {moon}")


if __name__ == "__main__":
    main()
