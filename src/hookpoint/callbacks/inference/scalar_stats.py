"""ScalarStats: means over a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hookpoint.callbacks.inference._outputs import number
from hookpoint.callbacks.inference._running_ratio import RunningRatio
from hookpoint.core.errors import BadArgument, MissingOutput
from hookpoint.core.fields import named_fields
from hookpoint.core.run.run import Run, now_of


class ScalarStats:
    """Average outputs, the loss or logged metrics over the dataset, weighted by samples.

    Each of `names` is the name of an output, "loss" for `run.loss`, or a metric logged during the pass, such as one of the
    Runner's metrics. If a name matches more than one of these, the first match in this order is used. An array contributes its
    mean, weighted by the number of samples in the batch. The means are logged as `<prefix>_<name>`, or as `<name>` if the
    prefix is empty. Each update queues one sum per name on the device and does not wait for it.

    >>> ScalarStats(["loss", "accuracy"], prefix="val").names
    ('val_loss', 'val_accuracy')
    """

    def __init__(self, names: str | Iterable[str], prefix: str | None = "validation") -> None:
        self._sources = [names] if isinstance(names, str) else list(names)
        if not self._sources or not all(isinstance(name, str) and name for name in self._sources):
            raise BadArgument(f"ScalarStats: names must be a name or a list of names, got {names!r}.")
        self.names = tuple(f"{prefix}_{name}" if prefix else name for name in self._sources)
        self.reset()

    def reset(self) -> None:
        self._means: dict[str, RunningRatio] | None = None

    def update(self, run: Run) -> None:
        values = {"loss": run.loss} if run.loss is not None else {}
        values |= named_fields(run.outputs)
        if self._means is None:
            self._means = {name: RunningRatio() for name in self._sources if name in values}
            self._known, self._kind = list(values), type(run.outputs).__name__
        samples = now_of(run).samples
        for name, mean in self._means.items():
            if name not in values:
                raise MissingOutput("ScalarStats", name, self._kind, values)
            mean.add_mean(number("ScalarStats", name, values[name]), samples)

    def share(self, run: Run) -> None:
        """Add up the sums from all ranks. A rank without data receives the names from the other ranks."""
        known = [self._known, self._kind] if self._means is not None else None
        (self._known, self._kind), names = next(
            gathered for gathered in run.gather([known, list(self._means or ())]) if gathered[0] is not None
        )
        means = self._means or {}
        self._means = {name: means.get(name, RunningRatio()) for name in names}
        for mean in self._means.values():
            mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._result(source, logged) for name, source in zip(self.names, self._sources, strict=True)}

    def _result(self, source: str, logged: Mapping[str, Any]) -> Any:
        assert self._means is not None
        for values, name in ((self._means, source), (logged, source), (logged, f"val_{source}")):
            if name in values:
                return values[name]
        raise MissingOutput("ScalarStats", source, self._kind, [*self._known, *logged])
