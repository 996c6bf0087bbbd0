"""Model setup: checks and steps that every strategy runs before it distributes a model and its optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from hookpoint.core.errors import BadStrategy

SPLIT_MODELS: weakref.WeakSet[torch.nn.Module] = (
    weakref.WeakSet()
)  # models from which a pipeline has removed the layers of other stages


def modules_in(model: Any) -> list[torch.nn.Module]:
    """Return the modules of a model or of a mapping of models.

    Raise BadStrategy if a module is already split, or if one of its parameters has no data yet.
    """
    models = model.values() if isinstance(model, Mapping) else [model]
    modules = [module for module in models if isinstance(module, torch.nn.Module)]
    for module in modules:
        if module in SPLIT_MODELS or any(hasattr(parameter, "full_tensor") for parameter in module.parameters()):
            raise BadStrategy(
                "the model is already split: this rank has only a part of it.",
                make="a new model to switch strategies, then load a checkpoint into it: hookpoint.load_weights(...)",
                drop="parallelize_module or fully_shard, if your code calls one of them",
            )
        for name, parameter in module.named_parameters():
            if parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
                raise BadStrategy(f"{name} has no data yet and cannot be sent.", make="the model with all of its weights")
    return modules


def optimizers_in(optimizer: Any) -> list[Any]:
    optimizers = optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]
    return [optimizer for optimizer in optimizers if optimizer is not None]


def tensors_of(modules: list[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the parameters and buffers of modules."""
    return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]


def parameters_of(optimizer: Any) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def send_weights(modules: list[torch.nn.Module]) -> None:
    """Send the chief's parameters and buffers to all ranks, because each rank may have its own random initialization."""
    with torch.no_grad():
        for tensor in tensors_of(modules):
            dist.broadcast(tensor.detach(), 0)
