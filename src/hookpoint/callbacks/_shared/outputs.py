"""What inferencers read of an iteration: outputs, by name or by a function, and targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hookpoint.core.errors import BadLoop, BadValue, MissingOutput, text

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

# What is measured: the name of an output, or a function of outputs and targets.
Source = str | Callable[[Any, Any], Any]

TARGET_NAMES = ("target", "targets", "label", "labels", "y")


def named(outputs: Any) -> Mapping[str, Any]:
    """Return the outputs by name; none where they have no names."""
    if isinstance(outputs, Mapping):
        return outputs
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        by_name: Mapping[str, Any] = outputs._asdict()
        return by_name
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    return {}


def outputs_of(reader: str, run: Run) -> Any:
    """Return the outputs of the batch, or say that there are none."""
    if run.outputs is None:
        raise BadLoop(
            text(f"{reader} needs outputs, and the forward left none.", set="run.outputs in it, or return them from forward=")
        )
    return run.outputs


def targets_of(run: Run) -> Any:
    """Return the targets: those that the forward set, or the part of the batch that is known for them; None for none."""
    batch, targets = run.batch, run.targets
    if targets is not None:
        return targets
    if isinstance(batch, Mapping):
        found = [name for name in TARGET_NAMES if name in batch]
        return batch[found[0]] if len(found) == 1 else None
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def read(reader: str, run: Run, source: Source) -> Any:
    """Return the output of that name, or what the function makes of outputs and targets."""
    outputs = outputs_of(reader, run)
    if not isinstance(source, str):
        return source(outputs, targets_of(run))
    found = named(outputs)
    if source not in found:
        raise MissingOutput(reader, source, type(outputs).__name__, found)
    return found[source]


def number(reader: str, name: str, value: Any) -> Any:
    """Return a value that has a mean, a number or an array, or refuse it."""
    if hasattr(value, "shape") or (hasattr(value, "__float__") and not isinstance(value, str)):
        return value
    raise BadValue(text(f"{reader}: '{name}' is {type(value).__name__}.", give="a number, or an array or tensor of numbers"))


def vector(reader: str, name: str, value: Any) -> Any:
    """Return an array with an entry for each sample, or refuse what is none."""
    if getattr(value, "shape", ()):
        return value
    what = "a single value" if hasattr(value, "shape") else type(value).__name__
    raise BadValue(text(f"{reader}: {name} is {what}.", give="an array or tensor with an entry for each sample"))
