"""Read an iteration's outputs and targets for inferencers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.errors import BadArgument, BadLoop, BadValue, MissingOutput
from hookpoint.core.fields import named_fields, targets_in
from hookpoint.core.run.run import Run

Source = str | Callable[[Any, Any], Any]  # the name of an output, or a function of outputs and targets


def check_source(owner: str, argument: str, source: Any) -> None:
    """Raise BadArgument unless `source` is a name or a function."""
    if not callable(source) and (not isinstance(source, str) or not source):
        raise BadArgument(f"{owner}: {argument} must be a name or a function (outputs, targets), got {source!r}.")


def outputs_of(reader: str, run: Run) -> Any:
    """Return the batch's outputs. Raise BadLoop if there are none."""
    if run.outputs is None:
        raise BadLoop(f"{reader}: the forward function set no outputs.", set="run.outputs in it, or return them from forward=")
    return run.outputs


def targets_of(run: Run) -> Any:
    """Return the targets that the forward function set, or else the targets in the batch, or else None."""
    return targets_in(run.batch) if run.targets is None else run.targets


def read(reader: str, run: Run, source: Source) -> Any:
    """Return the output with this name, or the function's result for the outputs and targets."""
    outputs = outputs_of(reader, run)
    if not isinstance(source, str):
        return source(outputs, targets_of(run))
    fields = named_fields(outputs)
    if source not in fields:
        raise MissingOutput(reader, source, type(outputs).__name__, fields)
    return fields[source]


def number(reader: str, name: str, value: Any) -> Any:
    """Return the value if it is a number or an array. Otherwise, raise BadValue."""
    if hasattr(value, "shape") or (hasattr(value, "__float__") and not isinstance(value, str)):
        return value
    raise BadValue(f"{reader}: '{name}' must be a number, or an array or tensor of numbers, got {type(value).__name__}.")


def vector(reader: str, name: str, value: Any) -> Any:
    """Return the value if it is an array with one entry per sample. Otherwise, raise BadValue."""
    if getattr(value, "shape", ()):
        return value
    kind = "a single value" if hasattr(value, "shape") else type(value).__name__
    raise BadValue(f"{reader}: {name} must be an array or tensor with one entry per sample, got {kind}.")
