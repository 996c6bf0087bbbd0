"""Load the weights that a callback has averaged from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.tree import is_tensor, memory_of

AVERAGES = ("averages", "statistics")  # in the state of a callback that averages weights; statistics are those of batch norm


def averaged_weights(folder: Path, which: bool | str) -> dict[str, Any]:
    """Return the model's weights with the averages of the only averaging callback, or of the named one."""
    state = read_checkpoint(folder).state
    found = {name: kept["state"] for name, kept in state.get("callbacks", {}).items() if "averages" in kept["state"]}
    named = list(found) if which is True else [name for name in found if name == which]
    if len(named) != 1:
        asked = "averages" if which is True else f"averages of {which}"
        cure = {"name": f"one of {', '.join(found)}"} if found else {"leave": "averaged= out, or add SwapEMAWeights() to it"}
        raise CannotResume(f"{folder} has {'multiple' if len(named) > 1 else 'no'} {asked}.", **cure)
    kept = found[named[0]]
    if not kept["averages"]:
        raise CannotResume(f"{folder} was saved before {named[0]} began to average.", give="a later checkpoint")
    # With pipeline stages, each rank has averaged its own layers. With replicas, the mean of all ranks counts.
    rank_states = [share.get("callbacks", {}).get(named[0], {}).get("state", {}) for share in state.get("ranks", ())]
    averages = [
        {name: value for part in AVERAGES for name, value in one.get(part, {}).items()} for one in (kept, *rank_states[1:])
    ]
    model, averages = filled([state["parts"]["model"], averages], folder)
    names = {name for rank in averages for name in rank}
    return _replaced(model, {name: _mean([rank[name] for rank in averages if name in rank]) for name in names})


def _mean(values: list[Any]) -> Any:
    """Return the mean of floating-point tensors, and the first of integer ones."""
    return sum(values) / len(values) if len(values) > 1 and values[0].is_floating_point() else values[0]


def _replaced(model: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return weights with these values, in the types of the weights. Tied weights stay tied."""
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
