"""Train scikit-learn's SGDClassifier in a Loop, with checkpoints and resume, without torch."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from hookpoint import Loop
from hookpoint import callbacks as cb


class Classifier:
    """A linear classifier. Checkpoints can hold any object with `state_dict` and `load_state_dict`."""

    def __init__(self) -> None:
        self.sgd = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, random_state=0)
        self.sgd.partial_fit(np.zeros((1, 64)), [0], classes=range(10))

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.sgd.coef_, "intercept": self.sgd.intercept_, "t": self.sgd.t_}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sgd.coef_, self.sgd.intercept_, self.sgd.t_ = state["coef"], state["intercept"], state["t"]


def batches(images: Any, labels: Any, size: int = 50) -> list[tuple[Any, Any]]:
    return [(images[start : start + size], labels[start : start + size]) for start in range(0, len(labels), size)]


def main(workdir: str | None = "runs/sklearn", epochs: int = 15) -> float:
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    train, val = batches(images[:1400], labels[:1400]), batches(images[1400:], labels[1400:])
    model = Classifier()
    callbacks = [cb.EarlyStopping("val_error", patience=3)]

    with Loop(
        [*callbacks, cb.MinSaver("val_error")] if workdir else callbacks, model=model, workdir=workdir, name="sklearn"
    ) as run:
        for _ in run.epochs(epochs):
            for x, y in run.batches(train):
                model.sgd.partial_fit(x, y)
                run.log(loss=log_loss(y, model.sgd.predict_proba(x), labels=range(10)))
            for x, y in run.batches(val, mode="val"):
                run.log(error=(model.sgd.predict(x) != y).mean())

    error = run.metrics["val_error"]
    print(f"validation error after {run.epoch} epochs: {error:.1%}")
    return float(error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", default="runs/sklearn")
    parser.add_argument("--epochs", type=int, default=15)
    main(**vars(parser.parse_args()))
