"""InferenceRunner: measure the model on another dataset."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

from hookpoint.callbacks._shared.arguments import function, parameters_of
from hookpoint.callbacks._shared.saver import handle_results
from hookpoint.callbacks.inference._outputs import number, outputs_of, targets_of
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.callbacks.inference.inferencer import Inferencer
from hookpoint.core.callback.callback import Callback, Options
from hookpoint.core.callback.callback_info import set_default_name
from hookpoint.core.data.array_batches import AUTO, BatchSize, check_data
from hookpoint.core.errors import BadArgument, BadValue, CompileError
from hookpoint.core.log import metric_objects
from hookpoint.core.log.metric_objects import by_name
from hookpoint.core.loop.missing_metrics import is_ours
from hookpoint.core.points import RUN_NAMES
from hookpoint.core.run.run import Run, now_of

METHODS = ("reset", "update", "results")


class InferenceRunner(Callback):
    """Run the model over another dataset, and log the results of the inferencers.

        data: An iterable of batches. With `batch_size`, a tuple of arrays or a dataset.
        infs: An inferencer or a list of them: `ClassificationError`, `ScalarStats`, `BinaryClassificationStats`, or your own.
        metrics: Mapping from names to functions of outputs and targets, or to objects with update, compute and reset.
        forward: A function that receives the batch and returns the outputs. If its first parameter is called `run`, it receives
            the run instead, and may also set the run's outputs, targets and loss. By default, a Runner calls its MainCallback
            for each batch, and a Loop calls its model and criterion.

    Each trigger runs a validation pass in eval mode without gradients, and fires the validation points. The modules' train or
    eval modes and the random number generators are restored afterwards. Values that other callbacks log during the pass are not
    added to the metrics, unless a `ScalarStats` names them. If a signal interrupts the pass, nothing is logged. A run may have
    any number of InferenceRunners. Writes the metrics listed in the `names` of its inferencers. In a distributed run, each rank
    evaluates its shard of the data. Results are converted to floats when they are read, so no batch waits for the device.

    >>> odd = InferenceRunner([[1, 2], [3]], metrics={"odd": lambda outputs, targets: sum(outputs) / len(outputs)},
    ...                       forward=lambda batch: [number % 2 for number in batch])
    >>> with Loop([odd]) as run:
    ...     for epoch in run.epochs(1):
    ...         pass
    >>> round(run.metrics["odd"], 3)
    0.667
    """

    step_cost: ClassVar[str] = "nothing; one pass over the data per trigger"
    is_internal = True  # reports of callback costs omit this callback

    def __init__(
        self,
        data: Any,
        infs: Inferencer | Iterable[Inferencer] = (),
        *,
        metrics: Mapping[str, Any] | None = None,
        forward: Callable[[Any], Any] | None = None,
        batch_size: BatchSize = AUTO,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        check_data(data, batch_size)
        function("InferenceRunner", "forward", forward, or_none=True)
        if isinstance(infs, Mapping):
            raise BadArgument("InferenceRunner: infs must be a list of inferencers, got a mapping.", write="metrics={...}")
        inferencers = list(infs) if isinstance(infs, Iterable) else [infs]
        for inferencer in inferencers:
            _check(inferencer)
        self.data, self.batch_size = data, batch_size
        self.infs: list[Inferencer] = [*inferencers, *(MetricStats(name, metric) for name, metric in by_name(metrics).items())]
        self.writes = tuple(name for inferencer in self.infs for name in inferencer.names)
        # Inferencers defined by users may return more results than `names` lists.
        self.writes_anything = any(not is_ours(type(inf)) or getattr(inf, "writes_anything", False) for inf in self.infs)
        duplicates = [name for name in self.writes if self.writes.count(name) > 1]
        if duplicates:
            raise BadArgument(f"InferenceRunner: '{duplicates[0]}' is measured twice.", give="one of the two another name")
        if not self.infs:
            raise BadArgument("InferenceRunner has nothing to measure.", give="inferencers, or metrics={name: metric}")
        set_default_name(self, f"InferenceRunner({self.writes[0] if self.writes else type(self.infs[0]).__name__})")
        self._distributed_run: Run | None = None
        self._forward = None if forward is None else partial(_compute, forward, _takes_run(forward))

    def on_setup(self, run: Run) -> None:
        if self._forward is None and run.model is None and run.hooks.main is None:
            raise CompileError(f"{self.name} has no model to run.", give="forward=, or model= to the Loop")
        for entry in run.hooks.entries:
            other = entry.subject
            shared = sorted(set(self.writes) & set(other.writes)) if isinstance(other, InferenceRunner) else []
            if other is not self and shared:
                give = "one of the two another name"
                raise CompileError(f"{self.name} and {entry.name} both write '{shared[0]}'.", give=give)

    def on_trigger(self, run: Run) -> None:
        for inferencer in self.infs:
            inferencer.reset()
        on_all_ranks = next((entry.ranks for entry in run.hooks.entries if entry.subject is self), self.ranks) == "all"
        self._distributed_run = run if run.team.size > 1 and on_all_ranks else None  # each rank has a shard of the data
        run.evaluate(self.data, batch_size=self.batch_size, forward=self._forward, update=self._update, results=self._results)
        if on_all_ranks or run.team.size == 1:  # savers act on all ranks or on none
            handle_results(run)  # on_val_epoch_end was before the results

    def _update(self, run: Run) -> None:
        for inferencer in self.infs:
            inferencer.update(run)

    def _results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        for inferencer in self.infs if self._distributed_run is not None else ():
            if hasattr(inferencer, "share"):
                inferencer.share(self._distributed_run)
        self._distributed_run = None
        return {name: value for inferencer in self.infs for name, value in inferencer.results(logged).items()}


def _takes_run(forward: Callable[[Any], Any]) -> bool:
    return any(parameter.name in RUN_NAMES for parameter in parameters_of(forward)[:1])


def _compute(forward: Callable[[Any], Any], takes_run: bool, run: Run) -> None:
    outputs = forward(run if takes_run else run.batch)
    if outputs is not None:
        run.outputs = outputs


def _check(inferencer: Any) -> None:
    missing = [name for name in METHODS if not callable(getattr(inferencer, name, None))]
    names = getattr(inferencer, "names", None)
    are_names = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
    if isinstance(inferencer, type):
        raise BadArgument(f"{inferencer.__name__} is a class, not an instance.", write=f"{inferencer.__name__}()")
    if "results" in missing and callable(getattr(inferencer, "compute", None)):
        raise BadArgument(f"{inferencer!r} is a metric without a name.", write="metrics={'val-name': metric}")
    if missing:
        missing += [] if are_names else ["names"]
        raise BadArgument(f"{inferencer!r} is not an inferencer: it has no {', '.join(missing)}.", see="callbacks.Inferencer")
    if not are_names:
        owner = type(inferencer).__name__
        write = f'names = ("val_{owner.lower()}",) in class {owner}'
        raise BadValue(f"{owner}.names must be a tuple with the names of its results, got {names!r}.", write=write)


class MetricStats:
    """Measure a metric over the dataset.

    The metric is an object with update, compute and reset, as in torchmetrics, or a function. An object is copied, so that it
    measures only this pass, and moved to the run's device if possible. The results of a function
    `(outputs, targets) -> number or tensor` are averaged, weighted by samples. In a distributed run, torchmetrics objects
    synchronize themselves; other results are averaged over the ranks, weighted by samples.
    """

    def __init__(self, name: str, metric: Any) -> None:
        self._has_state = metric_objects.has_state(metric)
        if not self._has_state and (not callable(metric) or isinstance(metric, type)):
            is_class = isinstance(metric, type)
            give = f"{metric.__name__}()" if is_class else "a function (outputs, targets) -> number, or a metric object"
            raise BadValue(f"metrics[{name!r}] must be a function or a metric object, got {metric!r}.", give=give)
        self.names = metric_objects.names_of(name, metric)
        self.writes_anything = self._has_state and metric_objects.returns_more(metric)
        self._name = name
        self._takes_tensors = metric_objects.takes_tensors(metric)
        self._synchronizes = self._has_state and metric_objects.syncs_across_ranks(metric)
        self._metric = copy.deepcopy(metric) if self._has_state else metric
        self.reset()

    def reset(self) -> None:
        self._means = {name: RunningRatio() for name in self.names}
        self._samples = 0
        self._is_shared = self._is_placed = False
        if self._has_state:
            self._metric.reset()

    def update(self, run: Run) -> None:
        reader = self._name or self.names[0]
        outputs, targets = outputs_of(reader, run), targets_of(run)
        if self._takes_tensors:
            outputs = metric_objects.scores_in(outputs, self._metric)
        if not self._has_state:
            self._means[reader].add_mean(number(reader, reader, self._metric(outputs, targets)), now_of(run).samples)
            return
        if not self._is_placed and run.device is not None and hasattr(self._metric, "to"):
            self._metric.to(run.device)
        self._is_placed = True
        self._samples += now_of(run).samples
        self._metric.update(outputs, targets)

    def share(self, run: Run) -> None:
        if self._synchronizes:
            return
        if self._has_state:
            self._is_shared = True
            for name, value in metric_objects.computed(self._name, self._metric) if self._samples else ():
                if name not in self._means:
                    give = "metrics that return a single number, or torchmetrics objects"
                    what = f"'{name}': in a distributed run, the names of results must be known before compute()."
                    raise BadValue(what, give=give)
                self._means[name].add_mean(value, self._samples)
        for mean in self._means.values():
            mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        if self._has_state and not self._is_shared:
            return dict(metric_objects.computed(self._name, self._metric))
        return dict(self._means)
