"""Train logistic regression in your own loop, in plain Python. Callbacks validate the model, print metrics and stop the run."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from hookpoint import Callback, Every, Loop, Run, on

Sample = tuple[float, float, int]

# The training: a model, its data, one step. None of this uses hookpoint.


class Model:
    """Predict the probability that a point (x, y) is on one side of a line."""

    def __init__(self) -> None:
        self.a = self.b = self.c = 0.0

    def __call__(self, x: float, y: float) -> float:
        return 1 / (1 + math.exp(-(self.a * x + self.b * y + self.c)))

    def loss(self, batch: list[Sample]) -> float:
        return -sum(math.log(self(x, y) if side else 1 - self(x, y)) for x, y, side in batch) / len(batch)

    def step(self, batch: list[Sample], rate: float) -> None:
        for slope, x, y in [(rate * (self(x, y) - side) / len(batch), x, y) for x, y, side in batch]:
            self.a, self.b, self.c = self.a - slope * x, self.b - slope * y, self.c - slope


def make_batches(count: int, *, seed: int, size: int = 20) -> list[list[Sample]]:
    """Return batches of points labelled by their side of the line y = 2x, with some label noise."""
    generator = random.Random(seed)
    points = [(generator.uniform(-2, 2), generator.uniform(-2, 2), generator.gauss(0, 0.3)) for _ in range(count * size)]
    samples = [(x, y, int(2 * x - y + noise > 0)) for x, y, noise in points]
    return [samples[start : start + size] for start in range(0, len(samples), size)]


# Everything else: callbacks. They do all the printing, so the default callbacks are turned off below.


class StopWhen(Callback):
    """Stop the run once a metric is low enough."""

    def __init__(self, metric: str, *, below: float) -> None:
        self.metric, self.below = metric, below
        self.reads = (metric,)

    def on_epoch_end(self, run: Run) -> None:
        if run.metrics[self.metric] < self.below:
            run.stop(f"{self.metric} is below {self.below}")


class CountErrors(Callback):
    """Log the error rate on the validation samples."""

    writes = ("error",)

    def on_epoch_end(self, run: Run) -> None:
        samples = [sample for batch in run.val_loader for sample in batch]
        run.log(error=sum((run.model(x, y) > 0.5) != bool(side) for x, y, side in samples) / len(samples))


class Smooth(Callback):
    """Keep a moving average of the loss for other callbacks."""

    def on_train_iter_end(self, run: Run, loss: float) -> None:
        run.store["smooth"] = 0.9 * run.store.get("smooth", loss) + 0.1 * loss


@on("on_train_iter_end", when=Every(steps=25))
def print_loss(run: Run) -> None:
    print(f"    step {run.step:3}   loss {run.store['smooth']:.3f}  {'=' * round(70 * run.store['smooth'])}")


@on("on_epoch_end")
def print_epoch(epoch: int, logs: Mapping[str, float]) -> None:
    print(f"  epoch {epoch}    " + "   ".join(f"{name} {value:.3f}" for name, value in logs.items()))


class ShowPoints(Callback):
    """Print every point, indented. A callback that overrides `run` receives all points."""

    depth = 1

    def run(self, hookpoint: str | None = None, logs: Mapping[str, object] | None = None) -> None:
        name = str(hookpoint)
        self.depth -= name.endswith("_end")
        print("  " * self.depth + name)
        self.depth += name.endswith("_begin")


def show_points() -> None:
    with Loop([ShowPoints()], extra_callbacks=[], monitors=[]) as run:
        for _ in run.epochs(1):
            for _ in run.batches(["a batch"]):
                pass
            for _ in run.batches(["a batch"], mode="val"):
                pass


def train() -> None:
    model, training, validation = Model(), make_batches(50, seed=1), make_batches(20, seed=2)
    callbacks = [StopWhen("error", below=0.04), CountErrors(), Smooth(), print_loss, print_epoch]
    loop = Loop(callbacks, extra_callbacks=[], monitors=[], model=model)
    print(f"\nWhat runs when, and why\n\n{loop.hooks.explain()}\n\nThe training\n")
    with loop as run:
        for _ in run.epochs(20):
            for batch in run.batches(training):
                run.loss = model.loss(batch)
                model.step(batch, rate=0.1)
                run.log(loss=run.loss)
            for batch in run.batches(validation, mode="val"):
                run.log(loss=model.loss(batch))
    print(f"\n  stopped in epoch {run.epoch} of {run.max_epochs}, after {run.step} steps, at y = {-model.a / model.b:.2f}x")
    print("\nThe measured cost of the callbacks\n")
    for cost in loop.hooks.costs():
        print(f"  {cost.callback:12} {cost.point:18} {cost.microseconds_per_call:7.1f} µs")


if __name__ == "__main__":
    print("The points of one epoch with one training and one validation batch\n")
    show_points()
    train()
