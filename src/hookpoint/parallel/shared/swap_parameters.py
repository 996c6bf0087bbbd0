"""Replaced: parameters that took the places of dense ones, and what knew the dense ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hookpoint.parallel.shared.local_shard import part_of


@contextmanager
def replaced(modules: list[torch.nn.Module], optimizers: list[Any]) -> Iterator[None]:
    """Put others in the places of parameters inside of the block; after it, optimizers go on with them, matched by name.

    From then on, the `load_state_dict` of modules and optimizers takes whole tensors, too, which every process has.
    """
    dense = {id(one): (module, name) for module in modules for name, one in module.named_parameters()}
    yield
    new = {id(module): dict(module.named_parameters()) for module in modules}
    for module in modules:
        module.register_load_state_dict_pre_hook(_take_parts)  # type: ignore[no-untyped-call]
    for one in optimizers:
        _point_at(one, {key: new[id(module)][name] for key, (module, name) in dense.items()})
        one.register_load_state_dict_pre_hook(_take_parts_of_state)


def _point_at(optimizer: Any, others: Mapping[int, torch.nn.Parameter]) -> None:
    """Let an optimizer go on with other parameters: those that took the places of its own."""
    state = optimizer.state
    for group in optimizer.param_groups:
        for number, dense in enumerate(group["params"]):
            new = others.get(id(dense))
            if new is not None and new is not dense:
                group["params"][number] = new
                if dense in state:
                    state[new] = {name: _like(value, new) for name, value in state.pop(dense).items()}


def _take_parts(module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let whole tensors be loaded into parameters of which parts are here."""
    for name, parameter in module.named_parameters(remove_duplicate=False):
        value = state.get(prefix + name)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            state[prefix + name] = part_of(value, parameter)


def _take_parts_of_state(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    if len(own) != len(numbers):
        return state  # the optimizer says what is wrong with it
    parts = dict(state["state"])
    for number, parameter in zip(numbers, own, strict=True):
        if number in parts:
            parts[number] = {name: _like(value, parameter) for name, value in parts[number].items()}
    return {**state, "state": parts}


def _like(value: Any, parameter: torch.nn.Parameter) -> Any:
    fits = isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.dim() > 0
    return part_of(value, parameter) if fits else value
