"""Script rates: the learning rates that a script gave its optimizers, beside those that a checkpoint has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def rates_of(optimizers: Iterable[Any], key: str = "lr") -> list[float]:
    """Return the learning rate of each parameter group of each optimizer that has any."""
    groups = (group for one in optimizers for group in _groups_of(one) if isinstance(group, Mapping))
    return [float(group[key]) for group in groups if group.get(key) is not None]


def saved_optimizers(state: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the state of each optimizer in what a checkpoint has of one, or of several by their keys."""
    if isinstance(state, Mapping):
        if "param_groups" in state:
            yield state
        else:
            for one in state.values():
                yield from saved_optimizers(one)


def changed_rate(script: Sequence[float], before: Sequence[float] | None, saved: Sequence[Mapping[str, Any]]) -> str:
    """Return a line if the script's rates have changed since a checkpoint, and it says which count; "" otherwise.

    `before` are the script's rates when it was made. An earlier release did not keep them: then those that a scheduler began
    with stand for them.
    """
    kept = rates_of(saved)
    if before is None:
        before = rates_of(saved, "initial_lr") or kept
    if not script or not kept or list(script) in (list(before), kept):
        return ""
    return (
        f"the learning rate of the script is {_shown(script)}, and was {_shown(before)}; that of the checkpoint counts,"
        f' {_shown(kept)}. To use another one, add HumanHyperParamSetter("learning_rate") and write the line'
        f" learning_rate: {script[0]:g} to hyper.txt in the workdir"
    )


def _groups_of(optimizer: Any) -> Any:
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else getattr(optimizer, "param_groups", None)
    return groups if isinstance(groups, list | tuple) else ()


def _shown(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))
