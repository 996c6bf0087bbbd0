"""Load the weights that a callback has averaged from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.errors import CannotResume
from hookpoint.storage.checkpoint.checkpoint_folder import read_checkpoint
from hookpoint.storage.checkpoint.load_shards import filled
from hookpoint.storage.checkpoint.tree import is_tensor, memory_of, named_tensors

AVERAGES = ("averages", "statistics")  # keys in the state of a callback that averages; the second is for batch norm


def averaged_weights(folder: Path, callback: bool | str) -> dict[str, Any]:
    """Return the model's weights with the averages of the named callback. True is the only callback that averages."""
    state = read_checkpoint(folder).state
    states = {name: saved["state"] for name, saved in state.get("callbacks", {}).items() if "averages" in saved["state"]}
    names = list(states) if callback is True else [name for name in states if name == callback]
    if len(names) != 1:
        wanted = "averages" if callback is True else f"averages of {callback}"
        cure = {"name": f"one of {', '.join(states)}"} if states else {"leave": "averaged= out, or add SwapEMAWeights() to it"}
        raise CannotResume(f"{folder} has {'multiple' if len(names) > 1 else 'no'} {wanted}.", **cure)
    name = names[0]
    if not states[name]["averages"]:
        raise CannotResume(f"{folder} was saved before {name} started to average.", give="a later checkpoint")
    # With pipeline stages, each rank has averaged its own layers. With replicas, the mean of all ranks counts.
    others = [rank.get("callbacks", {}).get(name, {}).get("state", {}) for rank in state.get("ranks", ())[1:]]
    averages = [
        {weight: value for key in AVERAGES for weight, value in rank.get(key, {}).items()} for rank in (states[name], *others)
    ]
    model, averages = filled([state["parts"]["model"], averages], folder)
    weights = {weight for rank in averages for weight in rank}
    return _replaced(model, {weight: _mean([rank[weight] for rank in averages if weight in rank]) for weight in weights})


def _mean(values: list[Any]) -> Any:
    """Return the mean of floating-point tensors, or the first of integer ones."""
    return sum(values) / len(values) if len(values) > 1 and values[0].is_floating_point() else values[0]


def _replaced(model: Mapping[str, Any], averages: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights with averages in their place, in the types of the weights. Tied weights stay tied."""
    tensors = dict(named_tensors(model))
    by_memory = {memory_of(tensors[name]): value.to(tensors[name].dtype) for name, value in averages.items() if name in tensors}

    def replaced(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: replaced(inner) for key, inner in value.items()}
        return by_memory.get(memory_of(value), value) if is_tensor(value) and value.numel() else value

    result: dict[str, Any] = replaced(model)
    return result
