"""The modules and parameters of a model under all their names, without the prefixes of torch.compile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.callbacks._shared.name_pattern import NamePattern
from hookpoint.core.checkpoint.plain_names import COMPILED, plain_name
from hookpoint.core.run.run import Run


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules with a forward, of a model or of each model in a list or mapping; '' is the model itself.

    A shared module is yielded under each of its names. Containers without a forward and the wrappers of torch.compile are
    left out.
    """
    for name, module in _named(model, "named_modules"):
        if not hasattr(module, COMPILED) and _has_forward(module):
            yield name, module


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a model, or of each model in a list or mapping; a tied one under each of its names."""
    return _named(model, "named_parameters")


def has_other_layers(run: Run) -> bool:
    """Return whether other ranks have layers that this rank does not have, as in a pipeline."""
    return run.team.has_stages


def chosen_parameters(run: Run, pattern: NamePattern, owner: str) -> dict[str, Any]:
    """Return the parameters that match a pattern. In a pipeline, there may be none on this rank."""
    named = named_parameters(run.model)
    return pattern.found(named) if has_other_layers(run) else pattern.chosen(owner, "parameter", named)


def is_compiled(model: Any) -> bool:
    """Return whether a model, or a module in it, is compiled with torch.compile."""
    modules = (module for _, module in _named(model, "named_modules"))
    return any(hasattr(module, COMPILED) or getattr(module, "_compiled_call_impl", None) is not None for module in modules)


def _named(model: Any, method: str) -> Iterator[tuple[str, Any]]:
    if isinstance(model, Mapping | list | tuple):
        for key, value in model.items() if isinstance(model, Mapping) else enumerate(model):
            yield from ((f"{key}.{name}" if name else str(key), item) for name, item in _named(value, method))
    elif hasattr(model, method):
        for name, item in getattr(model, method)(remove_duplicate=False):
            yield plain_name(name), item


def _has_forward(module: Any) -> bool:
    import torch

    return getattr(module.forward, "__func__", module.forward) is not torch.nn.Module.forward
