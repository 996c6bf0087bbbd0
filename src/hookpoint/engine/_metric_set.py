"""MetricSet: functions of outputs and targets, and objects that add up over a pass, logged under their names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadLoop, text
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run, now_of


class MetricSet(Callback):
    """Log metrics in training and validation.

    A function `(outputs, targets) -> number or tensor` is averaged over the pass, by samples. An object with `update`,
    `compute` and `reset` gets every batch and is logged once at the end of the pass; training and validation have one each.
    Where a forward of one's own sets no `run.targets`, the last part of the batch stands for them. In several processes an
    object of torchmetrics adds up over all of them itself; what other objects compute is averaged by samples.
    """

    is_internal = True

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__()
        self._functions = {}
        self._objects: dict[str, dict[str, Any]] = {"train": {}, "val": {}}
        self._samples = {"train": 0, "val": 0}
        for name, metric in metrics.items():
            if all(hasattr(metric, part) for part in ("update", "compute", "reset")):
                self._objects["train"][name] = metric
                self._objects["val"][name] = copy.deepcopy(metric)
            elif callable(metric):
                self._functions[name] = metric
            else:
                raise BadLoop(text(f"metrics[{name!r}] is {metric!r}.", give="a function (outputs, targets) -> number"))

    def on_train_epoch_begin(self, run: Run) -> None:
        self._reset("train", run)

    def on_val_epoch_begin(self, run: Run) -> None:
        self._reset("val", run)

    def on_train_iter_end(self, run: Run) -> None:
        self._update("train", run)

    def on_val_iter_end(self, run: Run) -> None:
        self._update("val", run)

    def on_train_epoch_end(self, run: Run) -> None:
        self._compute("train", run)

    def on_val_epoch_end(self, run: Run) -> None:
        self._compute("val", run)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the objects of the training pass are, of those whose insides are plain values and tensors."""
        return {name: kept for name, metric in self._objects["train"].items() if (kept := _inside(metric)) is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, kept in state.items():
            if name in self._objects["train"]:
                vars(self._objects["train"][name]).update(copy.deepcopy(kept))

    def _reset(self, mode: str, run: Run) -> None:
        self._samples[mode] = 0
        for metric in self._objects[mode].values():
            metric.reset()
            if hasattr(metric, "to") and run.device is not None:
                metric.to(run.device)

    def _update(self, mode: str, run: Run) -> None:
        if run.outputs is None:
            raise BadLoop(text("metrics need outputs, and the forward left none.", set="run.outputs, and run.targets, in it"))
        targets = run.targets
        if targets is None and isinstance(run.batch, tuple | list) and len(run.batch) > 1:
            targets = run.batch[-1]
        with torch.no_grad():
            for name, function in self._functions.items():
                run.log(name, function(run.outputs, targets))
            for metric in self._objects[mode].values():
                metric.update(run.outputs, targets)
        self._samples[mode] += now_of(run).samples

    def _compute(self, mode: str, run: Run) -> None:
        is_shared = machine_of(run).scopes.passes[-1].is_shared
        for name, metric in self._objects[mode].items():
            run.log(name, self._over_all(metric, mode, run) if is_shared else metric.compute())

    def _over_all(self, metric: Any, mode: str, run: Run) -> Any:
        """Return what a metric is over the data of all processes."""
        if hasattr(metric, "sync_context"):
            return metric.compute()
        samples = self._samples[mode]
        total = run.reduce(float(metric.compute()) * samples if samples else 0.0)
        return total / run.reduce(samples)


def _inside(metric: Any) -> dict[str, Any] | None:
    """Return what a metric adds up, or None where it cannot be kept, and an epoch that is gone on with has a partial value."""
    names = getattr(metric, "_defaults", None)  # torchmetrics names what it adds up, beside much else that it holds
    inside = {name: value for name, value in vars(metric).items() if names is None or name in names or name == "_update_count"}
    return copy.deepcopy(inside) if _is_plain(inside) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)
