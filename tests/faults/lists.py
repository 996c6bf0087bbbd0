"""Typical lists of callbacks, and lists that change between starts; each function is a task."""

from __future__ import annotations

import os
import signal
from typing import Any

import subject
import torch
from torch import nn

from hookpoint import Callback, Loop, Runner
from hookpoint import callbacks as cb

EPOCHS = 12
LISTS = ("torch's scheduler", "callbacks", "own loop")


# Lists that change


class Counts(Callback):
    """Count steps, and save the count in the checkpoint."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.number = 0

    def on_step_end(self) -> None:
        self.number += 1

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class Dies(Callback):
    """Kill the process before a step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step

    def on_train_iter_begin(self, run: Any) -> None:
        if run.step + 1 == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def count(workdir: str, trace: str, variant: dict[str, Any], names: list[str], step: int = 0) -> tuple[Any, dict[str, int]]:
    """Train with one counter per name, to the end or until a step; return the results and the counts."""
    counters = [Counts(name) for name in names]
    result = subject.train(workdir, trace, subject.Variant(**variant), more=[*counters, Dies(step)])
    return result, {counter.name: counter.number for counter in counters}


# Lists that decide


class Decisions(Callback):
    """Record the settings and the loss of each epoch; kill the process at the end of one, before or after its checkpoint."""

    def __init__(self, optimizer: Any, at: str, epoch: int) -> None:
        super().__init__()
        self.rows: list[Any] = []
        self._optimizer = optimizer
        self._at, self._epoch = at, epoch

    def on_epoch_begin(self, run: Any) -> None:
        if not run.resuming:
            group = self._optimizer.param_groups[0]
            self.rows.append([run.epoch, float(group["lr"]), float(group["weight_decay"])])

    def on_epoch_end(self, run: Any) -> None:
        self.rows[-1].append(run.metrics["val_loss"])
        self._die_if("before", run)

    def on_save(self, run: Any) -> None:
        if run.mode is None:
            self._die_if("after", run)

    def _die_if(self, at: str, run: Any) -> None:
        if (at, run.epoch) == (self._at, self._epoch):
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = [list(row) for row in state["rows"]]


class Schedule(Callback):
    """Multiply the weight decay after each epoch, like a user's own schedule."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer, self._factor = optimizer, 1.0

    def on_epoch_end(self) -> None:
        self._factor *= 0.75
        self._optimizer.param_groups[0]["weight_decay"] = 0.1 * self._factor

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self._factor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._factor = state["factor"]


class Stops(Callback):
    """Stop when the validation loss has not improved `patience` times in a row."""

    reads = ("val_loss",)

    def __init__(self, patience: int) -> None:
        super().__init__()
        self._patience, self._waited, self._best = patience, 0, float("inf")

    def on_epoch_end(self, run: Any) -> None:
        value = run.metrics["val_loss"]
        self._waited = 0 if value < self._best else self._waited + 1
        self._best = min(self._best, value)
        self.on_load(run)

    def on_load(self, run: Any) -> None:  # a kill may come between its decision and the end of the run
        if self._waited >= self._patience:
            run.stop("it gets no better")

    def state_dict(self) -> dict[str, Any]:
        return {"waited": self._waited, "best": self._best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._waited, self._best = state["waited"], state["best"]


def decide(workdir: str, trace: str, variant: dict[str, Any], which: str, at: str = "", epoch: int = 0) -> dict[str, Any]:
    """Train with a list that makes decisions at the end of each epoch; return the decisions."""
    parts = subject.make(subject.Variant(**variant), trace, [])
    model, optimizer = parts.model, torch.optim.Adam(parts.model.parameters(), lr=0.05)
    decisions = Decisions(optimizer, at, epoch)
    best = cb.MinSaver("val-error-top1" if which == "callbacks" else "val_loss", async_save=False)
    measures = [cb.InferenceRunner(parts.val, [cb.ClassificationError("wrong-top1", "val-error-top1")])]
    ours = [
        cb.ModelSaver(async_save=False),
        *(measures if which == "callbacks" else []),
        best,
        cb.ScheduledHyperParamSetter("weight_decay", [(0, 0.1), (2, 0.05), (5, 0.01)]),
        cb.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        cb.EarlyStopping("val_loss", patience=4, restore_best_weights=True),
        decisions,
    ]
    if which == "own loop":
        _in_loop(workdir, parts, optimizer, ours)
    elif which == "callbacks":
        runner = Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=ours, workdir=workdir, log_every=3)
        runner.fit(parts.train, parts.val, epochs=EPOCHS)
    else:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        theirs = [cb.ModelSaver(async_save=False), best, Schedule(optimizer), Stops(patience=4), decisions]
        options: dict[str, Any] = {"lr_scheduler": plateau, "lr_metric": "val_loss", "workdir": workdir, "log_every": 3}
        Runner(model, optimizer, nn.CrossEntropyLoss(), callbacks=theirs, **options).fit(parts.train, parts.val, epochs=EPOCHS)
    return {
        "epochs": decisions.rows,
        "best": [best.best.value, best.best.step],
        "weights": subject.digest(model.state_dict()),
        "optimizer": subject.digest(optimizer.state_dict()),
        **subject.records(workdir),
    }


def _in_loop(workdir: str, parts: subject.Parts, optimizer: Any, callbacks: list[Any]) -> None:
    model, criterion = parts.model, nn.CrossEntropyLoss()
    with Loop(callbacks, model=model, optimizer=optimizer, workdir=workdir, log_every=3) as run:
        for _ in run.epochs(EPOCHS):
            model.train()
            for inputs, targets in run.batches(parts.train):
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)
            model.eval()
            with torch.no_grad():
                for inputs, targets in run.batches(parts.val, mode="val"):
                    run.log(loss=criterion(model(inputs), targets))
