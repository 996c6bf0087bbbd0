"""What inferencers read of an iteration: outputs, by name or by a function, and targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookpoint.core.errors import BadLoop, BadValue, MissingOutput
from hookpoint.core.fields import named_fields, target_field
from hookpoint.core.run.run import Run

# What is measured: the name of an output, or a function of outputs and targets.
Source = str | Callable[[Any, Any], Any]


def outputs_of(reader: str, run: Run) -> Any:
    """Return the outputs of the batch, or say that there are none."""
    if run.outputs is None:
        raise BadLoop(
            f"{reader} needs outputs, and the forward left none.", set="run.outputs in it, or return them from forward="
        )
    return run.outputs


def targets_of(run: Run) -> Any:
    """Return the targets: those that the forward set, or the part of the batch that is known for them; None for none."""
    batch, targets = run.batch, run.targets
    if targets is not None:
        return targets
    if isinstance(batch, tuple | list):
        return batch[-1] if len(batch) > 1 else None
    return target_field(named_fields(batch))


def read(reader: str, run: Run, source: Source) -> Any:
    """Return the output of that name, or what the function makes of outputs and targets."""
    outputs = outputs_of(reader, run)
    if not isinstance(source, str):
        return source(outputs, targets_of(run))
    found = named_fields(outputs)
    if source not in found:
        raise MissingOutput(reader, source, type(outputs).__name__, found)
    return found[source]


def number(reader: str, name: str, value: Any) -> Any:
    """Return a value that has a mean, a number or an array, or refuse it."""
    if hasattr(value, "shape") or (hasattr(value, "__float__") and not isinstance(value, str)):
        return value
    raise BadValue(f"{reader}: '{name}' is {type(value).__name__}.", give="a number, or an array or tensor of numbers")


def vector(reader: str, name: str, value: Any) -> Any:
    """Return an array with an entry for each sample, or refuse what is none."""
    if getattr(value, "shape", ()):
        return value
    what = "a single value" if hasattr(value, "shape") else type(value).__name__
    raise BadValue(f"{reader}: {name} is {what}.", give="an array or tensor with an entry for each sample")
