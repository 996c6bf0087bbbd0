"""Stage split: assign the layers of a model to the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hookpoint.core.errors import BadStrategy
from hookpoint.parallel.shared.model_setup import SPLIT_MODELS, tensors_of

Split = Sequence[str | int] | Callable[[nn.Module], Sequence[nn.Module]]


def stages_of(model: nn.Module, split: Split) -> list[nn.Module]:
    """Return the stages of a model. They are called in order, each with the output of the previous stage."""
    stages = list(split(model)) if callable(split) else _split_at(model, split)
    for stage in stages:
        if not isinstance(stage, nn.Module):
            raise BadStrategy(f"PipelineParallel: split must return modules, got a {type(stage).__name__}.")
    _check_owners(model, stages)
    return stages


def owned_by(stage: nn.Module) -> dict[int, torch.Tensor]:
    """Return the parameters and buffers of a stage, keyed by id."""
    return {id(tensor): tensor for tensor in tensors_of([stage])}


def keep_only(model: nn.Module, own: dict[int, torch.Tensor]) -> None:
    """Set all parameters and buffers of a model to None except those in `own`. Its modules remain."""
    SPLIT_MODELS.add(model)
    for module in model.modules():
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        for name, tensor in (*parameters, *buffers):
            if id(tensor) not in own:
                setattr(module, name, None)
                if isinstance(module, _NormBase):
                    module.track_running_stats = False  # reset_running_stats would access the missing buffers


def _split_at(model: nn.Module, split: Sequence[str | int]) -> list[nn.Module]:
    names = [_module_name(model, place) for place in split]
    layers = list(_layers(model, "", names))
    order = [name for name, _ in layers]
    begins = [next(index for index, layer in enumerate(order) if f"{layer}.".startswith(f"{name}.")) for name in names]
    if not begins or begins != sorted(set(begins)) or begins[0] == 0:
        what = f"PipelineParallel: split={names!r} is not in the order of the model: {', '.join(order)}."
        raise BadStrategy(what, give="the first module of every stage except the first, in this order")
    bounds = zip([0, *begins], [*begins, len(layers)], strict=True)
    return [nn.Sequential(*(module for _, module in layers[start:end])) for start, end in bounds]


def _module_name(model: nn.Module, place: str | int) -> str:
    """Return the name of a module that is specified by its name or index."""
    submodules = [name for name, _ in _submodules(model)]
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(submodules):
        return submodules[place]
    if isinstance(place, str) and place in dict(model.named_modules()) and place:
        return place
    what = f"PipelineParallel: {type(model).__name__} has no module {place!r} to split at."
    raise BadStrategy(what, choose=", ".join(submodules), write="names inside a Sequential as 'blocks.3'")


def _layers(module: nn.Module, name: str, splits: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules in call order. Descend into a module only if it contains a split point."""
    inside = [split for split in splits if split.startswith(f"{name}." if name else "") and split != name]
    if not inside:
        yield name, module
        return
    if type(module).forward is not nn.Sequential.forward:
        what = f"PipelineParallel: cannot split at {inside[0]!r} inside a {type(module).__name__}: it is not an nn.Sequential."
        raise BadStrategy(what, write="split=lambda model: [model.front, model.back], which returns the stages")
    for key, submodule in _submodules(module):
        yield from _layers(submodule, f"{name}.{key}" if name else key, inside)


def _submodules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the direct submodules with their names. Unlike `named_children`, this repeats a module that is called twice."""
    return (item for item in module.named_modules(remove_duplicate=False) if item[0] and "." not in item[0])


def _check_owners(model: nn.Module, stages: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    for number, stage in enumerate(stages):
        for key in owned_by(stage):
            if key not in names:
                raise BadStrategy(f"PipelineParallel: stage {number} has tensors that are not in the model.")
            if owners.setdefault(key, number) != number:
                what = f"PipelineParallel: {names[key]} is in stage {owners[key]} and in stage {number}, on different ranks."
                raise BadStrategy(what, untie="it, or split elsewhere")
    if missing := [name for key, name in names.items() if key not in owners]:
        raise BadStrategy(f"PipelineParallel: no stage contains {', '.join(missing)}.", give="stages that cover the model")


def check_splittable(model: Any) -> nn.Module:
    """Return the model as a module. Raise BadStrategy for multiple models, and for module state that is not a tensor."""
    if not isinstance(model, nn.Module):
        raise BadStrategy(f"PipelineParallel: the model must be a single nn.Module, got {type(model).__name__}.")
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            what = f"PipelineParallel: the state {name} is not a tensor and cannot be sent."
            raise BadStrategy(what, register="a buffer instead")
    return model
