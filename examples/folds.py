"""Add points around complete training runs. There is one run for each seed and cross-validation fold."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from hookpoint import Callback, Hooks, Runner, guard

Data = tuple[Tensor, Tensor]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).float().mean()


@guard("on_fold")
def train_fold(train: Data, val: Data, seed: int, fold: int, *, callbacks: object = None) -> float:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    runner = Runner(model, optimizer, nn.CrossEntropyLoss(), metrics={"accuracy": accuracy}, extra_callbacks=[], monitors=[])
    run = runner.fit(train, val, epochs=5, batch_size=64)
    return float(run.metrics["val_accuracy"])


@guard("on_seed")
def train_folds(images: Tensor, labels: Tensor, seed: int, folds: int, *, callbacks: object = None) -> float:
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed).split(images, labels)
    return statistics.mean(
        train_fold((images[a], labels[a]), (images[b], labels[b]), seed, fold, callbacks=callbacks)
        for fold, (a, b) in enumerate(splits, 1)
    )


class Table(Callback):
    """Print one row per seed, and collect the means."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def on_seed_begin(self, seed: int) -> None:
        print(f"seed {seed}:", end="", flush=True)

    def on_fold_end(self, result: float) -> None:
        print(f"  {result:.1%}", end="", flush=True)

    def on_seed_end(self, result: float) -> None:
        print(f"   mean {result:.1%}")
        self.means.append(result)


class StopOnBadFold(Callback):
    """Stop as soon as the accuracy on a fold is low, without training on the remaining folds."""

    def on_fold_end(self, result: float, fold: int) -> None:
        if result < 0.5:
            raise RuntimeError(f"fold {fold} has an accuracy of only {result:.1%}")


def main(seeds: Iterable[int] = (0, 1), folds: int = 3) -> float:
    digits, classes = load_digits(return_X_y=True)
    images, labels = torch.tensor(digits).float() / 16, torch.tensor(classes)
    table = Table()
    hooks = Hooks([table, StopOnBadFold()])  # compiled once, for all folds
    for seed in seeds:
        train_folds(images, labels, seed, folds, callbacks=hooks)
    print(f"mean accuracy: {statistics.mean(table.means):.1%}")
    return statistics.mean(table.means)


if __name__ == "__main__":
    main()
