"""MetricSet: compute and log a Runner's metrics. A metric is a function of the outputs and targets, or a metric object."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import BadArgument, NotACallback
from hookpoint.core.fields import targets_in
from hookpoint.core.log import metric_objects
from hookpoint.core.log.logbook import logged_name
from hookpoint.core.logger import logger
from hookpoint.core.loop.services import machine_of
from hookpoint.core.run.run import Run, now_of
from hookpoint.engine.data.as_loader import map_tensors

LOGGED = ("loss", "val_loss", "learning_rate")  # the metrics that a Runner logs itself


class MetricSet(Callback):
    """Log metrics in training and validation.

    A metric is a function or an object. The values of a function `(outputs, targets) -> number or tensor` are averaged over the
    pass, weighted by samples. An object with the methods `update`, `compute` and `reset` is updated with every batch, and its
    result is logged at the end of the pass. Training and validation use separate copies of the object. If an object computes a
    dict, like torchmetrics' MetricCollection, each value is logged under its own name.

    If the forward does not set `run.targets`, the targets are the last item of the batch, or a field of the batch with a common
    name such as "labels". With multiple ranks, torchmetrics objects reduce their values over all ranks themselves. The values
    of other objects are averaged over the ranks, weighted by samples.

    The names `loss`, `val_loss` and `learning_rate` are reserved.
    """

    is_internal = True

    def __init__(self, metrics: Mapping[str, Any], *, copies: bool = False) -> None:
        super().__init__()
        self._copies = copies  # copies outputs and targets: a metric object may store them, but a CUDA graph overwrites them
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
                raise BadArgument(
                    f"metrics[{name!r}] must be callable, got {metric!r}.", give="a function (outputs, targets) -> number"
                )
        _check_names(metrics)
        self._names = [one for pair in metrics.items() for one in metric_objects.names_of(*pair)]

    def on_run_begin(self, run: Run) -> None:
        for name in self._names if run.is_chief else ():
            if logged_name(name, "val") == name:
                line = "the metric %r is logged under this name in training and in validation; leave the prefix out of the name"
                logger.warning(line, name)

    def on_train_epoch_begin(self, run: Run) -> None:
        mode = str(run.mode)
        self._samples[mode] = 0
        for metric in self._objects[mode].values():
            metric.reset()
            if hasattr(metric, "to") and run.device is not None:
                metric.to(run.device)

    on_val_epoch_begin = on_train_epoch_begin

    def on_train_iter_end(self, run: Run) -> None:
        self._update("train", run)

    def on_val_iter_end(self, run: Run) -> None:
        self._update("val", run)

    def on_train_epoch_end(self, run: Run) -> None:
        is_shared = machine_of(run).scopes.passes[-1].is_shared
        name, metric = "", None
        try:
            for name, metric in self._objects[str(run.mode)].items():
                averages = is_shared and not metric_objects.syncs_across_ranks(metric)
                values = self._mean_over_ranks(name, metric, run) if averages else metric_objects.computed(name, metric)
                for key, value in values:
                    run.log(key, value)
        except Exception as error:
            _add_note(error, name, metric)
            raise

    on_val_epoch_end = on_train_epoch_end

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the metric objects for training, except for objects whose state cannot be stored."""
        return {name: state for name, metric in self._objects["train"].items() if (state := _state_of(metric)) is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, metric in self._objects["train"].items():
            if name in state:
                _load(metric, state[name])

    def _update(self, mode: str, run: Run) -> None:
        outputs, targets = run.outputs, run.targets
        if outputs is None:
            raise BadArgument(
                "metrics need outputs, but the forward did not set any.",
                set="run.outputs and run.targets in the forward",
            )
        if targets is None:
            targets = targets_in(run.batch)
        scores, name, metric = None, "", None
        try:
            with torch.no_grad():
                for name, metric in (*self._functions.items(), *self._objects[mode].items()):
                    given = outputs
                    if name in self._takes_tensors and not isinstance(outputs, torch.Tensor):
                        given = scores = metric_objects.scores_in(outputs, metric) if scores is None else scores
                    if name in self._functions:
                        run.log(name, metric(given, targets))
                    elif self._copies and mode == "train":
                        metric.update(*map_tensors((given, targets), torch.clone))
                    else:
                        metric.update(given, targets)
        except Exception as error:
            _add_note(error, name, metric)
            raise
        self._samples[mode] += now_of(run).samples

    def _mean_over_ranks(self, name: str, metric: Any, run: Run) -> Iterable[tuple[str, Any]]:
        """Yield the names and values of a metric. Each value is the mean over all ranks, weighted by samples.

        Call this only for a metric that does not reduce its values over the ranks itself.
        """
        samples = self._samples[str(run.mode)]
        values = dict(metric_objects.computed(name, metric)) if samples else {}
        total = run.reduce(samples)
        for one in metric_objects.names_of(name, metric):
            yield one, run.reduce(float(values[one]) * samples if samples else 0.0) / total


def _add_note(error: Exception, name: str, metric: Any) -> None:
    """Add the name of the metric that failed to its exception. A collection has no name, and is described by its class."""
    error.add_note(f"in metric {name!r}" if name else f"in the metrics of the {type(metric).__name__}")


def _check_names(metrics: Mapping[str, Any]) -> None:
    """Raise BadArgument if the values of a metric would be mixed with those of another metric, or with the Runner's own."""
    taken = set(LOGGED)
    for name in (one for pair in metrics.items() for one in metric_objects.names_of(*pair)):
        logged = {name, logged_name(name, "val")}
        if mixed := sorted(logged & taken):
            raise BadArgument(
                f"the metric {name!r} would be logged as {mixed[0]!r}, but this name is already in use.", use="another name"
            )
        taken |= logged


def _state_of(metric: Any) -> dict[str, Any] | None:
    """Return a metric's state, or None if the state cannot be stored.

    If the state is not stored, a resumed epoch measures only its remaining batches.
    """
    if metric_objects.is_collection(metric):
        states = {name: _state_of(one) for name, one in zip(metric.keys(), metric.values(), strict=True)}
        return states if None not in states.values() else None
    names = getattr(metric, "_defaults", None)  # for torchmetrics, the names of the attributes that are state
    state = {name: value for name, value in vars(metric).items() if names is None or name in names or name == "_update_count"}
    return copy.deepcopy(state) if _is_plain(state) else None


def _load(metric: Any, state: Mapping[str, Any]) -> None:
    if metric_objects.is_collection(metric):
        for name, one in zip(metric.keys(), metric.values(), strict=True):
            _load(one, state.get(name, {}))
    else:
        vars(metric).update(copy.deepcopy(dict(state)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.Tensor)
