"""The modules and parameters of a model, under all of their names, as they were before it was compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.callbacks._shared.name_pattern import NamePattern
from hookpoint.core.checkpoint.plain_names import COMPILED, plain_name
from hookpoint.core.run.run import Run


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield what can be called of a model, or of each one in a list or mapping of models; '' is the model itself.

    A module that stands in two places comes with both names. Lists of modules, which nobody calls, are left out, and so is
    what torch.compile puts around a module.
    """
    for name, module in _named(model, "named_modules"):
        if not hasattr(module, COMPILED) and _has_forward(module):
            yield name, module


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a model, or of each one in a list or mapping of models; a tied one comes with all its names."""
    return _named(model, "named_parameters")


def has_other_layers(run: Run) -> bool:
    """Say whether other processes have layers of the model that this one has not: then each sees its own parameters only."""
    return run.team.has_stages


def chosen_parameters(run: Run, pattern: NamePattern, owner: str) -> dict[str, Any]:
    """Return the parameters that are meant; none, where they may be on another process."""
    named = named_parameters(run.model)
    return pattern.found(named) if has_other_layers(run) else pattern.chosen(owner, "parameter", named)


def is_compiled(model: Any) -> bool:
    """Say whether a model, or a module in it, goes through torch.compile."""
    modules = (module for _, module in _named(model, "named_modules"))
    return any(hasattr(one, COMPILED) or getattr(one, "_compiled_call_impl", None) is not None for one in modules)


def _named(model: Any, what: str) -> Iterator[tuple[str, Any]]:
    if isinstance(model, Mapping | list | tuple):
        for key, one in model.items() if isinstance(model, Mapping) else enumerate(model):
            yield from ((f"{key}.{name}" if name else str(key), part) for name, part in _named(one, what))
    elif hasattr(model, what):
        for name, part in getattr(model, what)(remove_duplicate=False):
            yield plain_name(name), part


def _has_forward(module: Any) -> bool:
    import torch

    return getattr(module.forward, "__func__", module.forward) is not torch.nn.Module.forward
