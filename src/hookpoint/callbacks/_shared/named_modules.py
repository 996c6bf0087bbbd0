"""List a model's modules, parameters and buffers under all their names, without the prefixes that torch.compile adds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hookpoint.core.checkpoint.plain_names import COMPILED
from hookpoint.core.checkpoint.stateful import named_items


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each module that has a forward method, as a pair (name, module). The name of the model itself is ''.

    `model` is a model, or a list or mapping of models. A shared module is yielded under each of its names. Containers without a
    forward method and torch.compile wrappers are left out.
    """
    for name, module in named_items(model, "named_modules", remove_duplicate=False):
        if not hasattr(module, COMPILED) and _has_forward(module):
            yield name, module


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a model, or of each model in a list or mapping.

    A tied parameter appears under each of its names.
    """
    return named_items(model, "named_parameters", remove_duplicate=False)


def named_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers of a model, or of each model in a list or mapping. A shared buffer appears under each of its names."""
    return named_items(model, "named_buffers", remove_duplicate=False)


def is_compiled(model: Any) -> bool:
    """Return whether a model or one of its modules is compiled with torch.compile."""
    modules = (module for _, module in named_items(model, "named_modules"))
    return any(hasattr(module, COMPILED) or getattr(module, "_compiled_call_impl", None) is not None for module in modules)


def _has_forward(module: Any) -> bool:
    import torch

    return getattr(module.forward, "__func__", module.forward) is not torch.nn.Module.forward
