"""MetricSet: functions of outputs and targets, and objects that add up over a pass, logged under their names."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from hookpoint.core.callback import Callback
from hookpoint.core.errors import BadLoop, text
from hookpoint.core.run import Run


class MetricSet(Callback):
    """Log metrics in training and validation.

    A function `(outputs, targets) -> number or tensor` is averaged over the pass, by samples. An object with `update`,
    `compute` and `reset` gets every batch and is logged once at the end of the pass; training and validation have one each.
    Where a forward of one's own sets no `run.targets`, the last part of the batch stands for them.
    """

    is_internal = True

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__()
        self._functions = {}
        self._objects: dict[str, dict[str, Any]] = {"train": {}, "val": {}}
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

    def _reset(self, mode: str, run: Run) -> None:
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

    def _compute(self, mode: str, run: Run) -> None:
        for name, metric in self._objects[mode].items():
            run.log(name, metric.compute())
