"""Link names: additional names for checkpoints, built from a template that contains the epoch, the step or metrics."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.logger import logger
from hookpoint.core.run.run import Run

CLOCKS: dict[str, Callable[[Run], int]] = {
    "epoch": lambda run: run.epoch,
    "step": lambda run: run.step,
    "iteration": lambda run: run.iteration,
}
CONVERSIONS: dict[str | None, Callable[[Any], Any]] = {None: lambda value: value, "s": str, "r": repr, "a": ascii}


class LinkNames:
    """A template such as "{epoch:02d}-{val_loss:.3f}".

    Inside the braces, all text before the colon is the name of the field: `epoch`, `step`, `iteration` or a metric. Any metric
    name therefore works, as in "{val/top-1.5:.2f}". Fields are never evaluated as expressions.
    """

    def __init__(self, owner: str, template: Any) -> None:
        write = 'filename="{epoch:02d}-{val_loss:.3f}"'
        if not isinstance(template, str) or not template:
            raise BadArgument(f"{owner}: filename must be a template, got {template!r}.", write=write)
        self.template = template
        try:
            self._parts = list(Formatter().parse(template))
            fields = [field for _, field, _, _ in self._parts if field is not None]
            if "" in fields:
                raise ValueError("a field has no name")
            self._filled({name: 1 if name in CLOCKS else 0.5 for name in fields})
        except (ValueError, KeyError) as error:
            raise BadArgument(f"{owner}: filename={template!r} is not a template: {error}.", write=write) from None
        literal = "".join(text for text, _, _, _ in self._parts)
        if any(character in literal for character in "/\\"):
            raise BadArgument(
                f"{owner}: filename must be a name, not a path, got {template!r}.", write=f"{write}; links are in the workdir"
            )
        self.metrics = tuple(dict.fromkeys(name for name in fields if name not in CLOCKS))

    def __call__(self, run: Run) -> str | None:
        """Return the link name for the run's current epoch, step and metrics, or None if a metric has no value yet."""
        missing = [name for name in self.metrics if name not in run.metrics]
        if missing:
            logger.warning("the checkpoint at step %d has no link %s: %s has no value", run.step, self.template, missing[0])
            return None
        values = {name: clock(run) for name, clock in CLOCKS.items()}
        return self._filled({**values, **{name: float(run.metrics[name]) for name in self.metrics}})

    def _filled(self, values: dict[str, Any]) -> str:
        filled = ""
        for text, field, spec, conversion in self._parts:
            filled += text
            if field is not None:
                filled += format(CONVERSIONS[conversion](values[field]), spec or "")
        return filled
