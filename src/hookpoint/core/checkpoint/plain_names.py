"""Plain names: weight names without the prefix that torch.compile adds.

`torch.compile(module)` stores the module in the attribute `_orig_mod`, so the names of the module's weights contain the prefix
"_orig_mod.". Checkpoints use plain names, so they load into compiled and uncompiled modules. Older checkpoints contain names
with the prefix. These names are converted when the checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of

COMPILED = "_orig_mod"  # the attribute in which torch.compile stores the original module
WRAPPED = "module."  # the prefix that DistributedDataParallel adds


def plain_name(name: str) -> str:
    """Return a name without the prefix that torch.compile adds.

    >>> plain_name("_orig_mod.layers.0._orig_mod.weight")
    'layers.0.weight'
    """
    return ".".join(piece for piece in name.split(".") if piece != COMPILED) if COMPILED in name else name


def plain_state(state: Any) -> Any:
    """Return a module's state dict, or a mapping of state dicts, with plain names."""
    if not isinstance(state, Mapping):
        return state
    state = _renamed(state, plain_name) if any(COMPILED in str(name) for name in state) else state
    if not any(isinstance(value, Mapping) for value in state.values()):
        return state
    return {name: plain_state(value) if isinstance(value, Mapping) else value for name, value in state.items()}


def names_of(module: Any, state: Any) -> Any:
    """Return a state dict with the names that the module expects, whether or not it is compiled."""
    if not isinstance(state, Mapping) or not hasattr(module, "named_modules"):
        return state
    if any(COMPILED in str(name) for name in state):
        state = _renamed(state, plain_name)
        if all(name.startswith(WRAPPED) for name in state) and not hasattr(module, WRAPPED[:-1]):
            state = _renamed(state, lambda name: name.removeprefix(WRAPPED))
    if any(name.endswith(COMPILED) for name, _ in module.named_modules()):
        state = _renamed(state, lambda name: _name_in(module, name))
    return state


def _name_in(module: Any, name: str) -> str:
    """Return the name that the module itself uses for the tensor or submodule with this plain name."""
    names: list[str] = []
    for piece in (*name.split("."), None) if name else (None,):
        while (compiled := getattr(module, COMPILED, None)) is not None:
            names.append(COMPILED)
            module = compiled
        if piece is not None:
            names.append(piece)
            module = getattr(module, piece, None)
    return ".".join(names)


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> Any:
    items = {rename(name): value for name, value in state.items()}
    renamed: Any = items if type(state) is dict else type(state)(items)  # type: ignore[call-arg]
    versions = versions_of(state)
    if isinstance(versions, Mapping):
        put_versions(renamed, type(versions)({rename(name): value for name, value in versions.items()}))  # type: ignore[call-arg]
    return renamed
