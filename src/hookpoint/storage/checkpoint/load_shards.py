"""Load sharded tensors from a checkpoint, and insert them into the loaded state in place of their placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder, has_placeholder
from hookpoint.core.checkpoint.stateful import named_parameters, state_of
from hookpoint.storage.checkpoint.state_files import unreadable_if_failing
from hookpoint.storage.checkpoint.tree import Where, copied

PARTS, STATE = "parts", "state"


def filled(state: Any, folder: Path, parts: Mapping[str, Any] | None = None) -> Any:
    """Return the state with its sharded tensors read from a checkpoint. Each file is verified before it is read.

    `parts` contains the objects that the run restores, such as its model and optimizer. If a tensor is sharded in this run,
    only this rank's shard is loaded. Otherwise, the full tensor is loaded. Tied tensors stay tied.
    """
    if not has_placeholder(state):
        return state
    from hookpoint.storage.checkpoint.shard_files import read_shards

    places: dict[str, Where] = {}

    def note(value: ShardedPlaceholder, where: Where) -> ShardedPlaceholder:
        places.setdefault(value.name, where)
        return value

    copied(state, placeholder=note)
    layout = TargetLayout(parts or {})
    with unreadable_if_failing(f"{folder} is intact, but its tensors"):
        tensors = read_shards(folder, set(places), lambda name, shape: layout.like(places[name], shape))
    return copied(state, placeholder=lambda value, where: tensors[value.name])


class TargetLayout:
    """Determine how the tensors of a saved state are sharded in this run.

    A saved tensor is sharded like the tensor that has the same path in the current state. An optimizer that has not stepped has
    no state yet. Each saved tensor of such an optimizer is therefore sharded like the parameter that it belongs to. A saved
    tensor that has the same name as a parameter is sharded like that parameter. Two tensors are only matched if they have the
    same shape.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._states: dict[str, Any] = {}
        self._named = dict(named_parameters(parts["model"])) if "model" in parts else {}

    def like(self, where: Where, shape: Any) -> Any:
        """Return a tensor of this run as a template for sharding the saved tensor. Return None to load the full tensor.

        `where` and `shape` are the place and the shape of the saved tensor.
        """
        where = tuple(plain_name(key) if isinstance(key, str) else key for key in where)
        candidates: list[Any] = [self._in_part(where), self._of_optimizer(where), self._named.get(where[-1])]
        return next((tensor for tensor in candidates if hasattr(tensor, "full_tensor") and tensor.shape == shape), None)

    def _in_part(self, where: Where) -> Any:
        if where[0] != PARTS or where[1] not in self._parts:
            return None
        name = where[1]
        if name not in self._states:
            self._states[name] = state_of(self._parts[name])
        return _at(self._states[name], where[2:])

    def _of_optimizer(self, where: Where) -> Any:
        if where[0] != PARTS or STATE not in where[2:]:
            return None
        part: Any = self._parts.get(where[1])
        place = 2
        while isinstance(part, Mapping | list | tuple) and where[place] != STATE:
            keyed = {str(key): inner for key, inner in (part.items() if isinstance(part, Mapping) else enumerate(part))}
            part, place = keyed.get(str(where[place])), place + 1
        index = where[place + 1] if len(where) > place + 1 else None
        if not hasattr(part, "param_groups") or where[place] != STATE or type(index) is not int:
            return None
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        return parameters[index] if index < len(parameters) else None


def _at(tree: Any, where: Where) -> Any:
    for key in where:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and type(key) is int and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree
