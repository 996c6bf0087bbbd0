"""Parts: the objects of a run that have a state, alone or in lists and mappings; what a checkpoint keeps of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.plain_names import names_of, plain_name, plain_state
from hookpoint.core.errors import BadArgument

OURS = ("model", "optimizer", "criterion", "lr_scheduler", "stepper", "gradients")


def has_state(part: Any) -> bool:
    """Say whether a checkpoint can keep this: it has a state dict, or holds things that have one."""
    if isinstance(part, Mapping | list | tuple):
        return any(has_state(one) for _, one in _items(part))
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def state_of(part: Any) -> Any:
    """Return the state of an object, or of each one in a list or mapping, by its key; that of a module has plain names."""
    if isinstance(part, Mapping | list | tuple):
        return {key: state_of(one) for key, one in _items(part) if has_state(one)}
    state = part.state_dict()
    return plain_state(state) if hasattr(part, "named_parameters") else state


def load_state(part: Any, state: Any, *, is_last: bool = True) -> None:
    """Load a state into an object, or into each one in a list or mapping. One that is loaded again later stays as it is."""
    if isinstance(part, Mapping | list | tuple):
        for key, one in _items(part):
            if key in state and has_state(one):
                load_state(one, state[key], is_last=is_last)
    else:
        state = state if is_last else own_copy(state, part)
        part.load_state_dict(names_of(part, state) if hasattr(part, "named_parameters") else state)


def user_state(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a user adds to the checkpoint, or refuse what cannot be kept."""
    parts = dict(given or {})
    for name, part in parts.items():
        if name in OURS:
            raise BadArgument(f"state={{'{name}': ...}}: that name is taken.", rename="it")
        if not has_state(part):
            raise BadArgument(
                f"state={{'{name}': ...}}: {type(part).__name__} has no state_dict and load_state_dict.", add="them"
            )
    return parts


def gradients_of(model: Any) -> dict[str, Any]:
    """Return the gradients that a window of several batches has gathered so far, by the parameters' names."""
    return {name: parameter.grad for name, parameter in named_parameters(model) if parameter.grad is not None}


def put_gradients(model: Any, gradients: Mapping[str, Any]) -> None:
    """Put gathered gradients back."""
    gradients = plain_state(gradients)
    for name, parameter in named_parameters(model):
        kept = gradients.get(name)
        parameter.grad = None if kept is None else _placed(kept.to(parameter.device).clone(), parameter)


def _placed(gradient: Any, parameter: Any) -> Any:
    """Return a whole gradient as its parameter lies: of one that is sharded over processes, the part that is here."""
    if not hasattr(parameter, "placements"):
        return gradient
    distribute = sys.modules["torch.distributed.tensor"].distribute_tensor
    return distribute(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None)


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a model, or of each one in a list or mapping of models, by their plain names."""
    return _named(model, "named_parameters")


def named_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers of a model, or of each one in a list or mapping of models, by their plain names."""
    return _named(model, "named_buffers")


def _named(model: Any, method: str) -> Iterator[tuple[str, Any]]:
    if isinstance(model, Mapping | list | tuple):
        for key, one in _items(model):
            yield from ((f"{key}.{name}", tensor) for name, tensor in _named(one, method))
    elif hasattr(model, method):
        yield from ((plain_name(name), tensor) for name, tensor in getattr(model, method)())


def _items(parts: Any) -> Iterator[tuple[str, Any]]:
    pairs = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
    return ((str(key), one) for key, one in pairs)
