"""RunSnapshot: a copy of a run's attributes at one moment, for callbacks that read them later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from hookpoint.core.errors import BadLoop, MissingMetric, NotAssignable, NotOffered, OutsideIteration
from hookpoint.core.run.run import Run

KEPT = (
    *("name", "workdir", "device", "config", "rank", "local_rank", "world_size", "is_chief", "data_rank", "model_rank"),
    *("mode", "epoch", "max_epochs", "epoch_complete", "resuming", "step", "iteration", "current_iteration", "samples"),
    *("elapsed", "moment", "progress", "stop_reason"),
)
OTHER_NAMES = {"global_step": "step", "epoch_num": "epoch", "max_epoch": "max_epochs", "num_epochs": "max_epochs"}
OTHER_NAMES |= {"size": "world_size", "epoch_stats": "logs"}
VALUES = ("metrics", "logs", "hyper")
OBJECTS = ("model", "optimizer", "criterion", "lr_scheduler", "train_loader", "val_loader")
OF_ITERATION = {"batch": "batch", "outputs": "outputs", "output": "outputs", "loss": "loss"}


class MetricsSnapshot(Mapping[str, float]):
    """Metrics at one moment, converted to floats when read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            raise MissingMetric(name, self._values)
        value = self._values[name]
        if type(value) is not float:
            value = self._values[name] = float(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self)})"


class RunSnapshot:
    """A read-only copy of a run's clocks, ranks and names. It has no methods that make requests or log values.

    `copied` is a function that copies metrics and hyper-parameters. If it is None, they are not included. With `has_objects`,
    the snapshot also includes the run's model, optimizer and similar objects. These objects are not copied, so use
    `has_objects` only at points before training.
    """

    def __init__(self, reader: str, run: Run, copied: Callable[[Any], Any] | None = None, *, has_objects: bool = False) -> None:
        kept = {name: getattr(run, name) for name in KEPT}
        try:
            kept["batch_idx"] = kept["local_step"] = run.batch_idx
        except OutsideIteration:
            pass
        if copied is not None:
            kept["metrics"] = _metrics(run, run.metrics, copied)
            kept["logs"] = logs_snapshot(run, copied)
            kept["hyper"] = run.hyper.frozen(copied)
        if has_objects:
            kept |= {name: getattr(run, name) for name in OBJECTS}
        kept |= {name: kept[ours] for name, ours in OTHER_NAMES.items() if ours in kept}
        vars(self).update(kept, _reader=reader, logger=logging.getLogger("hookpoint"))

    @property
    def trainer(self) -> RunSnapshot:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that explains why the attribute is not available, and how to fix the callback."""
        reader = vars(self).get("_reader", "a callback")
        of_run = getattr(Run, name, None) if not name.startswith("_") else None
        if callable(of_run):
            raise BadLoop(
                f"{reader} is asynchronous and can only read: run.{name} is not available.",
                remove="asynchronous = True, or move this call to another callback",
            )
        why = "which does not exist"
        cures = {}
        if name in OF_ITERATION or name in VALUES:
            why = "which is copied only for handlers that name it"
            argument = OF_ITERATION.get(name, "run")
            cures = {"name": f"the argument: def on_iter_end(self, run{'' if argument == 'run' else ', ' + argument})"}
        elif name in OBJECTS or of_run is not None:
            why = "which may have changed by the time an asynchronous callback runs"
            cures = {"remove": "asynchronous = True, or read it at on_run_begin"}
        raise NotOffered(reader, f"run.{name}", [known for known in vars(self) if not known.startswith("_")], why, **cures)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise NotAssignable(f"{vars(self)['_reader']} is asynchronous: run.{name} is read-only.")

    def __repr__(self) -> str:
        return f"Run({vars(self)['name']!r}, epoch={vars(self)['epoch']}, step={vars(self)['step']})"


def logs_snapshot(run: Run, copied: Callable[[Any], Any]) -> MetricsSnapshot:
    """Return a copy of the run's current `logs`."""
    return _metrics(run, run.logs, copied)


def _metrics(run: Run, names: Iterable[str], copied: Callable[[Any], Any]) -> MetricsSnapshot:
    values = {name: run.metrics.as_logged(name) for name in names}
    return MetricsSnapshot({name: copied(value) if hasattr(value, "detach") else value for name, value in values.items()})
