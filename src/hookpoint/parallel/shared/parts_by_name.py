"""The modules and optimizers of a run, of which there may be several by name."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import BadStrategy

CUT: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # models that keep only the layers of their stage


def modules_in(model: Any) -> list[torch.nn.Module]:
    """Return the module that a model is, or those of a mapping of models; refuse what has no weights, or not all of them."""
    found = model.values() if isinstance(model, Mapping) else [model]
    modules = [module for module in found if isinstance(module, torch.nn.Module)]
    for module in modules:
        if module in CUT or any(hasattr(one, "full_tensor") for one in module.parameters()):
            raise BadStrategy(
                "the model is split already: a process has parts of it only.",
                make="another for another strategy, with the weights of a checkpoint: hookpoint.load_weights(...)",
                drop="or your own parallelize_module, or fully_shard",
            )
        for name, parameter in module.named_parameters():
            if parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
                raise BadStrategy(
                    f"{name} has no values yet, and processes cannot share it.", make="the model with all of its weights"
                )
    return modules


def optimizers_in(optimizer: Any) -> list[Any]:
    found = optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]
    return [one for one in found if one is not None]


def send_weights(modules: list[torch.nn.Module]) -> None:
    """Give every process the chief's parameters and buffers: they may have been made from different random numbers."""
    with torch.no_grad():
        for tensor in _tensors(modules):
            dist.broadcast(tensor.detach(), 0)


def _tensors(modules: list[torch.nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()
