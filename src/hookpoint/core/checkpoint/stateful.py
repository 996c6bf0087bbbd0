"""Stateful: save and load the state of objects, alone or in lists and mappings."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from hookpoint.core.checkpoint.own_copy import own_copy
from hookpoint.core.checkpoint.plain_names import names_of, plain_name, plain_state
from hookpoint.core.errors import BadArgument

OBJECTS = ("model", "optimizer", "criterion", "lr_scheduler")  # the loop arguments that are saved in checkpoints
RESERVED = (*OBJECTS, "stepper", "gradients")


def has_state(part: Any) -> bool:
    """Return whether a checkpoint can store an object: it has a state dict, or it contains objects that have one."""
    if isinstance(part, Mapping | list | tuple):
        return any(has_state(item) for _, item in _items(part))
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def state_of(part: Any) -> Any:
    """Return an object's state, or a dict of states for a list or mapping of objects.

    The names in a module's state do not contain the prefix that torch.compile adds.
    """
    if isinstance(part, Mapping | list | tuple):
        return {key: state_of(item) for key, item in _items(part) if has_state(item)}
    state = part.state_dict()
    return plain_state(state) if hasattr(part, "named_parameters") else state


def load_state(part: Any, state: Any, *, is_last: bool = True) -> None:
    """Load a state into an object, or into a list or mapping of objects.

    Loading may modify the state. If the same state will be loaded again later, pass `is_last=False` to load a copy of it.
    """
    if isinstance(part, Mapping | list | tuple):
        for key, item in _items(part):
            if key in state and has_state(item):
                load_state(item, state[key], is_last=is_last)
    else:
        state = state if is_last else own_copy(state, part)
        part.load_state_dict(names_of(part, state) if hasattr(part, "named_parameters") else state)


def user_state(state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the objects that the user adds to the checkpoint. Raise BadArgument if one of them cannot be stored."""
    if not isinstance(state, Mapping | None):
        raise BadArgument(f"state must be a dict of objects by name, got {state!r}.", write='state={"scheduler": scheduler}')
    parts = dict(state or {})
    for name, part in parts.items():
        if name in RESERVED:
            raise BadArgument(f"state: the name '{name}' is reserved.", rename="it")
        if not has_state(part):
            raise BadArgument(f"state['{name}']: {type(part).__name__} needs both state_dict and load_state_dict.", add="them")
    return parts


def not_saved(parts: Mapping[str, Any], *, resumes: bool) -> str | None:
    """Return a message about a model or an optimizer that checkpoints lack, or None. `parts` are a loop's objects by name."""
    saved = [name for name, part in parts.items() if has_state(part)]
    if parts.get("model") is not None and "model" not in saved and set(saved) <= set(OBJECTS):
        return (
            "the checkpoints of this run do not contain the model, because it has no state_dict and load_state_dict; "
            "pass state={...} to Loop with an object that has both"
        )
    if not saved:
        return (
            "the checkpoints of this run contain no model and no optimizer, so they cannot restore what the script trains; "
            "pass model=, optimizer= or state={...} to Loop"
        )
    if set(saved) <= {"optimizer", "criterion", "lr_scheduler"}:
        return "the checkpoints of this run contain no model; pass model= or state={...} to Loop"
    trains = any(getattr(parameter, "requires_grad", False) for _, parameter in named_parameters(parts.get("model")))
    if resumes and trains and set(saved) <= {"model", "criterion"}:
        return "the checkpoint contains no optimizer. If the script has one, its state is not restored; pass optimizer= to Loop"
    return None


def gradients_of(model: Any) -> dict[str, Any]:
    """Return the gradients accumulated so far, by parameter name."""
    return {name: parameter.grad for name, parameter in named_parameters(model) if parameter.grad is not None}


def restore_gradients(model: Any, gradients: Mapping[str, Any]) -> None:
    """Restore accumulated gradients."""
    gradients = plain_state(gradients)
    for name, parameter in named_parameters(model):
        saved = gradients.get(name)
        parameter.grad = None if saved is None else _placed(saved.to(parameter.device).clone(), parameter)


def _placed(gradient: Any, parameter: Any) -> Any:
    """Convert a full gradient to its parameter's layout. For a sharded parameter, keep only this rank's shard."""
    if not hasattr(parameter, "placements"):
        return gradient
    distribute = sys.modules["torch.distributed.tensor"].distribute_tensor
    return distribute(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None)


def named_parameters(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and parameters of a model, or of each model in a list or mapping (see `named_items`)."""
    return named_items(model, "named_parameters")


def named_buffers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and buffers of a model, or of each model in a list or mapping (see `named_items`)."""
    return named_items(model, "named_buffers")


def sparse_in(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of each object that has a sparse buffer. A checkpoint cannot store such a buffer."""
    return {
        name: state_of(part)
        for name, part in parts.items()
        if has_state(part) and any("sparse" in str(getattr(buffer, "layout", "")) for _, buffer in named_buffers(part))
    }


def named_items(model: Any, method: str, **options: Any) -> Iterator[tuple[str, Any]]:
    """Call a method of a model, such as "named_parameters", and yield the (name, value) pairs that the method returns.

    The names do not contain the prefix that torch.compile adds. For a list or mapping of models, call the method of each model.
    Each name then starts with the model's index or key. Options that the method does not accept are dropped, because a model
    need not be a torch module.
    """
    if isinstance(model, Mapping | list | tuple):
        for key, item in _items(model):
            yield from ((f"{key}.{name}" if name else key, found) for name, found in named_items(item, method, **options))
    elif hasattr(model, method):
        function = getattr(model, method)
        known = inspect.signature(function).parameters if options else {}
        accepted = {name: value for name, value in options.items() if name in known}
        yield from ((plain_name(name), found) for name, found in function(**accepted))


def _items(parts: Any) -> Iterator[tuple[str, Any]]:
    pairs = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
    return ((str(key), item) for key, item in pairs)
