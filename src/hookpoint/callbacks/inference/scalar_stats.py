"""ScalarStats: means over a data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hookpoint.callbacks._shared.outputs import number
from hookpoint.callbacks.inference._running_ratio import Ratio
from hookpoint.core.errors import MissingOutput
from hookpoint.core.fields import named_fields
from hookpoint.core.run.run import Run, now_of


class ScalarStats:
    """Measure the means of outputs, of the loss, or of metrics over the data set, each sample counted once.

    `names` are names of outputs, "loss", or names under which something is logged in the pass, as the metrics of a Runner
    are; the first that is there counts. An array counts with its mean, for as many samples as the batch has. The means are
    logged with `prefix` and a `_` in front, and with an empty one just as they are called. A batch costs a sum per name on
    its device, and no wait.

    >>> ScalarStats(["loss", "accuracy"], prefix="val").names
    ('val_loss', 'val_accuracy')
    """

    def __init__(self, names: str | Iterable[str], prefix: str | None = "validation") -> None:
        self._sources = [names] if isinstance(names, str) else list(names)
        strange = [name for name in self._sources if not isinstance(name, str) or not name]
        if strange or not self._sources:
            raise TypeError(f"ScalarStats(names=...) takes a name, or several; got {names!r}")
        self.names = tuple(f"{prefix}_{name}" if prefix else name for name in self._sources)
        self.reset()

    def reset(self) -> None:
        self._means: dict[str, Ratio] | None = None

    def update(self, run: Run) -> None:
        values = {"loss": run.loss} if run.loss is not None else {}
        values |= named_fields(run.outputs)
        if self._means is None:
            self._means = {name: Ratio() for name in self._sources if name in values}
            self._known, self._kind = list(values), type(run.outputs).__name__
        samples = now_of(run).samples
        for name, mean in self._means.items():
            if name not in values:
                raise MissingOutput("ScalarStats", name, self._kind, values)
            mean.add_mean(number("ScalarStats", name, values[name]), samples)

    def share(self, run: Run) -> None:
        """Take in the sums of all processes; one that had no data learns from the others what there is."""
        known = [self._known, self._kind] if self._means is not None else None
        found = next(one for one in run.gather([known, list(self._means or ())]) if one[0] is not None)
        (self._known, self._kind), names = found
        means = self._means or {}
        self._means = {name: means.get(name, Ratio()) for name in names}
        for mean in self._means.values():
            mean.share(run)

    def results(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._result(source, logged) for name, source in zip(self.names, self._sources, strict=True)}

    def _result(self, source: str, logged: Mapping[str, Any]) -> Any:
        assert self._means is not None
        for found, name in ((self._means, source), (logged, source), (logged, f"val_{source}")):
            if name in found:
                return found[name]
        raise MissingOutput("ScalarStats", source, self._kind, [*self._known, *logged])
