"""Averaged weights: those that a callback has averaged, out of a checkpoint, in the form of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.tree import is_tensor, memory_of

AVERAGES = ("averages", "statistics")  # in the state of a callback that averages weights; the second for batch norm


def averaged_weights(folder: Path, which: bool | str) -> dict[str, Any]:
    """Return the model's weights with the averages of a callback in them, of the only one or of the one that is named."""
    state = read_checkpoint(folder).state
    found = {name: kept["state"] for name, kept in state.get("callbacks", {}).items() if "averages" in kept["state"]}
    named = list(found) if which is True else [name for name in found if name == which]
    if len(named) != 1:
        asked = "averages" if which is True else f"averages of {which}"
        cures = (
            {"name": f"one of {', '.join(found)}"} if found else {"leave": "averaged= out, or add SwapEMAWeights() to the run"}
        )
        raise CannotResume(f"{folder} has {'several' if len(named) > 1 else 'no'} {asked}.", **cures)
    kept = found[named[0]]
    if not kept["averages"]:
        raise CannotResume(f"{folder} was made before {named[0]} had begun to average.", give="a later checkpoint")
    # Where layers were on several processes, each has averaged its own; where copies were, the mean of all counts.
    shares = [share.get("callbacks", {}).get(named[0], {}).get("state", {}) for share in state.get("ranks", ())]
    several = [{name: value for part in AVERAGES for name, value in one.get(part, {}).items()} for one in (kept, *shares[1:])]
    model, several = filled([state["parts"]["model"], several], folder)
    return _put_in(model, {name: _mean([one[name] for one in several if name in one]) for each in several for name in each})


def _mean(values: list[Any]) -> Any:
    """Return the mean; of whole numbers the first."""
    return sum(values) / len(values) if len(values) > 1 and values[0].is_floating_point() else values[0]


def _put_in(model: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with the values in them, in the weights' own types; those that are one and the same stay so."""
    names = dict(_flat("", model))
    of_memory = {memory_of(names[name]): value.to(names[name].dtype) for name, value in values.items() if name in names}

    def replaced(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {key: replaced(inner) for key, inner in one.items()}
        return of_memory.get(memory_of(one), one) if is_tensor(one) and one.numel() else one

    result: dict[str, Any] = replaced(model)
    return result


def _flat(prefix: str, state: Mapping[str, Any]) -> Any:
    for key, one in state.items():
        if isinstance(one, Mapping):
            yield from _flat(f"{prefix}{key}.", one)
        elif is_tensor(one):
            yield f"{prefix}{key}", one
