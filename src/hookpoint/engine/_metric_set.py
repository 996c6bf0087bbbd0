"""MetricSet: functions of outputs and targets, and objects that add up over a pass, logged under their names."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, NotACallback
from hookpoint.core.fields import named_fields, target_field
from hookpoint.core.log import metric_objects
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run, now_of


class MetricSet(Callback):
    """Log metrics in training and validation.

    A function `(outputs, targets) -> number or tensor` is averaged over the pass, by samples. An object with `update`,
    `compute` and `reset` gets every batch and is logged once at the end of the pass; training and validation have one each.
    What computes a dict, as a MetricCollection of torchmetrics does, is logged under a name for each value.
    Where the forward sets no `run.targets`, the last part of the batch stands for them, or the one that is named as targets
    are. In several processes an object of torchmetrics adds up over all of them itself; what other objects compute is averaged
    by samples.
    """

    is_internal = True

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__()
        self._functions = {}
        self._objects: dict[str, dict[str, Any]] = {"train": {}, "val": {}}
        self._samples = {"train": 0, "val": 0}
        self._takes_tensors = {name for name, metric in metrics.items() if metric_objects.takes_tensors(metric)}
        for name, metric in metrics.items():
            if isinstance(metric, type):
                raise NotACallback.a_class(metric)
            if metric_objects.has_state(metric):
                self._objects["train"][name] = metric
                self._objects["val"][name] = copy.deepcopy(metric)
            elif callable(metric):
                self._functions[name] = metric
            else:
                raise BadArgument(f"metrics[{name!r}] is {metric!r}.", give="a function (outputs, targets) -> number")

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
                _restore(self._objects["train"][name], kept)

    def _reset(self, mode: str, run: Run) -> None:
        self._samples[mode] = 0
        for metric in self._objects[mode].values():
            metric.reset()
            if hasattr(metric, "to") and run.device is not None:
                metric.to(run.device)

    def _update(self, mode: str, run: Run) -> None:
        outputs, targets = run.outputs, run.targets
        if outputs is None:
            raise BadArgument("metrics need outputs, and the forward left none.", set="run.outputs, and run.targets, in it")
        if targets is None:
            targets = _targets(run.batch)
        scores = None
        with torch.no_grad():
            for name, metric in (*self._functions.items(), *self._objects[mode].items()):
                given = outputs
                if name in self._takes_tensors and not isinstance(outputs, torch.Tensor):
                    given = scores = metric_objects.scores_in(outputs, metric) if scores is None else scores
                if name in self._functions:
                    run.log(name, metric(given, targets))
                else:
                    metric.update(given, targets)
        self._samples[mode] += now_of(run).samples

    def _compute(self, mode: str, run: Run) -> None:
        is_shared = machine_of(run).scopes.passes[-1].is_shared
        for name, metric in self._objects[mode].items():
            averages = is_shared and not metric_objects.adds_up_over_all(metric)
            for one, value in self._over_all(name, metric, mode, run) if averages else metric_objects.computed(name, metric):
                run.log(one, value)

    def _over_all(self, name: str, metric: Any, mode: str, run: Run) -> Iterable[tuple[str, Any]]:
        """Return what a metric is over the data of all processes: the mean by samples, where it cannot tell itself."""
        samples = self._samples[mode]
        values = dict(metric_objects.computed(name, metric)) if samples else {}
        total = run.reduce(samples)
        for one in metric_objects.names_of(name, metric):
            yield one, run.reduce(float(values[one]) * samples if samples else 0.0) / total


def _targets(batch: Any) -> Any:
    """Return the part of a batch that stands for targets that the forward did not set; None where there is none."""
    if isinstance(batch, tuple | list):
        return batch[-1] if len(batch) > 1 else None
    return target_field(named_fields(batch))


def _inside(metric: Any) -> dict[str, Any] | None:
    """Return what a metric adds up, or None where it cannot be kept, and an epoch that is resumed has a partial value."""
    if metric_objects.is_collection(metric):
        each = {name: _inside(one) for name, one in zip(metric.keys(), metric.values(), strict=True)}
        return each if None not in each.values() else None
    names = getattr(metric, "_defaults", None)  # torchmetrics names what it adds up, beside much else that it holds
    inside = {name: value for name, value in vars(metric).items() if names is None or name in names or name == "_update_count"}
    return copy.deepcopy(inside) if _is_plain(inside) else None


def _restore(metric: Any, kept: Mapping[str, Any]) -> None:
    if metric_objects.is_collection(metric):
        for name, one in zip(metric.keys(), metric.values(), strict=True):
            _restore(one, kept.get(name, {}))
    else:
        vars(metric).update(copy.deepcopy(dict(kept)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)
