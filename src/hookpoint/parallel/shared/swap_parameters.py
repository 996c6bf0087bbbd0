"""Swap parameters: replace dense parameters with shards, and update the optimizers that refer to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hookpoint.parallel.shared.local_shards import shard_like
from hookpoint.parallel.shared.model_setup import parameters_of


@contextmanager
def swap_parameters(modules: list[torch.nn.Module], optimizers: list[Any]) -> Iterator[None]:
    """Update optimizers after code inside a `with` block has replaced parameters.

    Each new parameter takes the place of the old parameter with the same name.

    After the block, `load_state_dict` of the modules and optimizers also accepts full tensors, and shards them. In this
    case, every rank must pass the full tensors.
    """
    dense = {id(parameter): (module, name) for module in modules for name, parameter in module.named_parameters()}
    yield
    new = {id(module): dict(module.named_parameters()) for module in modules}
    for module in modules:
        module.register_load_state_dict_pre_hook(_shard_weights)  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        _update(optimizer, {key: new[id(module)][name] for key, (module, name) in dense.items()})
        optimizer.register_load_state_dict_pre_hook(_shard_optimizer_state)


def _update(optimizer: Any, replacements: Mapping[int, torch.nn.Parameter]) -> None:
    state = optimizer.state
    for group in optimizer.param_groups:
        for number, dense in enumerate(group["params"]):
            new = replacements.get(id(dense))
            if new is not None and new is not dense:
                group["params"][number] = new
                if dense in state:
                    state[new] = _shard_entries(state.pop(dense), new)


def _shard_weights(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        value = state.get(prefix + name)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            state[prefix + name] = shard_like(value, parameter)


def _shard_optimizer_state(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    parameters = parameters_of(optimizer)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(parameters) != len(numbers):
        return state  # the optimizer's load_state_dict raises an error for this state
    pairs = zip(numbers, parameters, strict=True)
    entries = state["state"]
    sharded = {number: _shard_entries(entries[number], parameter) for number, parameter in pairs if number in entries}
    return {**state, "state": {**entries, **sharded}}


def _shard_entries(entries: Mapping[str, Any], parameter: torch.nn.Parameter) -> dict[str, Any]:
    """Shard the optimizer state tensors that have the same shape as their parameter."""
    return {
        name: shard_like(value, parameter)
        if isinstance(value, torch.Tensor) and value.dim() and value.shape == parameter.shape
        else value
        for name, value in entries.items()
    }
