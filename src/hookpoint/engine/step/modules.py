"""A model's modules: their device, their mode (train or eval) and their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hookpoint.core.checkpoint.plain_names import COMPILED
from hookpoint.core.checkpoint.stateful import load_state
from hookpoint.core.errors import BadArgument


def modules_of(model: Any) -> list[torch.nn.Module]:
    """Return the modules of a model or of a dict of models, as a list."""
    if isinstance(model, torch.nn.Module):
        return [model]
    found = model.values() if isinstance(model, Mapping) else ()
    return [module for module in found if isinstance(module, torch.nn.Module)]


def load_weights(model: Any, weights: Mapping[str, Any]) -> None:
    """Load a state dict into a model, or a dict of state dicts into a dict of models."""
    if not isinstance(weights, Mapping):
        kind, path = type(weights).__name__, isinstance(weights, str | PathLike)
        cure = "hookpoint.load_weights(path)" if path else "model.state_dict()"
        raise BadArgument(f"init_weights must be a state dict, got a {kind}.", write=f"init_weights={cure}")
    if isinstance(model, Mapping):
        for name, state in weights.items():
            load_state(model[name], state)
    else:
        load_state(model, weights)


@contextmanager
def modes_kept(model: Any) -> Iterator[None]:
    """Restore the mode of every submodule at the end of a `with` block."""
    found = [(part, part.training) for module in modules_of(model) for part in module.modules()]
    try:
        yield
    finally:
        for part, training in found:
            part.training = training


@contextmanager
def training(model: Any) -> Iterator[None]:
    """Enable gradients, and switch models from eval mode to train mode.

    If a model is already in train mode, its submodules keep their modes.
    """
    with modes_kept(model), torch.enable_grad():
        for module in modules_of(model):
            if not module.training:
                module.train()
        yield


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch models to eval mode and disable gradients inside a `with` block."""
    with modes_kept(model), torch.no_grad():
        for module in modules_of(model):
            module.eval()
        yield


def unwrapped(model: Any) -> Any:
    """Return the model without its DistributedDataParallel wrapper. Checkpoints contain the state of the returned model.

    A torch.compile wrapper is removed only if it wraps a DistributedDataParallel model.
    """
    inside = getattr(model, COMPILED, model)
    return unwrapped(inside.module) if isinstance(inside, DistributedDataParallel) else model


def choose_device(model: Any, wanted: str | torch.device) -> torch.device:
    """Return the device for a run.

    "auto" selects a GPU if one is available and the model is on the CPU. Otherwise, it selects the model's device. A model on
    multiple devices is not moved, and batches are moved to its first device.
    """
    if wanted != "auto":
        try:
            device = torch.device(wanted)
        except (RuntimeError, TypeError) as error:
            forms = '"auto", "cpu", "cuda", "cuda:0" or "mps"'
            raise BadArgument(f"device={wanted!r} is not a device that torch can use.", use=forms) from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BadArgument(f"device={str(wanted)!r}: no CUDA device is available.", use='device="auto" or device="cpu"')
        return device
    for module in modules_of(model):
        for parameter in module.parameters():
            if parameter.device.type != "cpu":
                return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def place_model(model: Any, device: torch.device) -> None:
    """Move the model to the device, unless it is on multiple devices."""
    for module in modules_of(model):
        if len({parameter.device for parameter in module.parameters()}) <= 1:
            module.to(device)


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Raise BadArgument if the optimizer contains none of the model's parameters."""
    if isinstance(optimizer, Mapping):
        for one in optimizer.values():
            check_optimizer(model, one)
        return
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return
    own = {id(parameter) for module in modules_of(model) for parameter in module.parameters()}
    if own and not any(id(parameter) in own for group in groups for parameter in group["params"]):
        write = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
        raise BadArgument("the optimizer has none of the model's parameters.", write=write)
