"""Cutting: which layers of a model belong to which stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hookpoint.core.errors import BadStrategy
from hookpoint.parallel.shared.parts_by_name import CUT

Split = Sequence[str | int] | Callable[[nn.Module], Sequence[nn.Module]]


def stages_of(model: nn.Module, split: Split) -> list[nn.Module]:
    """Return the stages of a model, each a module that is called with what the one before has returned; refuse bad cuts."""
    stages = list(split(model)) if callable(split) else _cut(model, split)
    for stage in stages:
        if not isinstance(stage, nn.Module):
            raise BadStrategy(f"split gives a {type(stage).__name__} for a stage.", give="a module for each stage")
    _refuse_unclear_owners(model, stages)
    return stages


def owned_by(stage: nn.Module) -> dict[int, torch.Tensor]:
    """Return the parameters and buffers of a stage, by identity."""
    return {id(one): one for one in (*stage.parameters(), *stage.buffers())}


def keep_only(model: nn.Module, own: dict[int, torch.Tensor]) -> None:
    """Let a model go of every tensor that is not one of these: its modules stay, with None in the places of what is gone."""
    CUT.add(model)
    for module in model.modules():
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        for name, tensor in (*parameters, *buffers):
            if id(tensor) not in own:
                setattr(module, name, None)
                if isinstance(module, _NormBase):
                    module.track_running_stats = False  # nobody is to reset what is not there


def _cut(model: nn.Module, split: Sequence[str | int]) -> list[nn.Module]:
    names = [_name_of(model, place) for place in split]
    pieces = list(_pieces(model, "", names))
    found = [name for name, _ in pieces]
    begins = [next(place for place, one in enumerate(found) if f"{one}.".startswith(f"{name}.")) for name in names]
    if not begins or begins != sorted(set(begins)) or begins[0] == 0:
        order = ", ".join(found)
        raise BadStrategy(
            f"split={names!r}: stages begin there, in the order {order}.", give="each but the first once, in this order"
        )
    ends = [*begins, len(pieces)]
    return [nn.Sequential(*(module for _, module in pieces[start:end])) for start, end in zip([0, *begins], ends, strict=True)]


def _name_of(model: nn.Module, place: str | int) -> str:
    """Return the name of the module that a new stage begins with."""
    children = [name for name, _ in _children(model)]
    if isinstance(place, int) and not isinstance(place, bool) and 0 <= place < len(children):
        return children[place]
    if isinstance(place, str) and place in dict(model.named_modules()) and place:
        return place
    what = f"{type(model).__name__} has no module {place!r} for a stage to begin with."
    raise BadStrategy(what, choose=", ".join(children), write="names inside of a Sequential as 'blocks.3'")


def _pieces(module: nn.Module, name: str, cuts: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    """Yield what is called in order; a module is taken apart only where it is cut inside."""
    inside = [cut for cut in cuts if cut.startswith(f"{name}." if name else "") and cut != name]
    if not inside:
        yield name, module
        return
    if type(module).forward is not nn.Sequential.forward:
        raise BadStrategy(
            f"split={inside[0]!r} cuts a {type(module).__name__}, which alone knows how it calls its modules.",
            cut="an nn.Sequential",
            give="or a function that returns the stages: split=lambda model: [model.front, model.back]",
        )
    for key, child in _children(module):
        yield from _pieces(child, f"{name}.{key}" if name else key, inside)


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules right inside of one; named_children leaves out what is called twice."""
    return ((name, one) for name, one in module.named_modules(remove_duplicate=False) if name and "." not in name)


def _refuse_unclear_owners(model: nn.Module, stages: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    names: dict[int, str] = {id(tensor): name for name, tensor in _named_tensors(model)}
    for number, stage in enumerate(stages):
        for key in owned_by(stage):
            if key not in names:
                raise BadStrategy(f"stage {number} has parameters or buffers that the model has not.", make="it of the model's")
            if owners.setdefault(key, number) != number:
                raise BadStrategy(
                    f"{names[key]} is in stage {owners[key]} and in stage {number}, on different processes.",
                    untie="it, or cut elsewhere",
                )
    if left := [name for key, name in names.items() if key not in owners]:
        raise BadStrategy(f"{', '.join(left)} would be in no stage.", give="stages with all of the model")


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def refuse_what_cannot_be_cut(model: Any) -> nn.Module:
    """Return the one module that a model is; refuse several, and states of modules that are no tensors."""
    if not isinstance(model, nn.Module):
        raise BadStrategy("PipelineParallel cuts one module, and the runner has none or several.", give="it one")
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise BadStrategy(f"{name} is a state that is no tensor, which processes cannot send.", register="a buffer instead")
    return model
