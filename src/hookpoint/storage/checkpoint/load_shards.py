"""Filling: the tensors of a state that are elsewhere, put in their places, as each process needs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.plain_names import plain_name
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder, has_placeholder
from hookpoint.core.checkpoint.stateful import named_parameters, state_of
from hookpoint.core.errors import CannotResume, HookpointError
from hookpoint.storage.checkpoint.tree import Where, copied

PARTS, STATE = "parts", "state"


def filled(state: Any, folder: Path, parts: Mapping[str, Any] | None = None) -> Any:
    """Return the state with the tensors of a checkpoint's folder in it, each verified before it is read.

    Where `parts`, the objects of the run, are in parts on several processes, of each tensor it is the one that this process
    has; else it is whole. Those that were one and the same are so again.
    """
    if not has_placeholder(state):
        return state
    from hookpoint.storage.checkpoint.shard_files import read_shards

    places: dict[str, Where] = {}

    def note(value: ShardedPlaceholder, where: Where) -> ShardedPlaceholder:
        places.setdefault(value.name, where)
        return value

    copied(state, elsewhere=note)
    lying = TargetLayout(parts or {})
    try:
        tensors = read_shards(folder, set(places), lambda name, shape: lying.like(places[name], shape))
    except (OSError, MemoryError, HookpointError):
        raise
    except Exception as error:  # it is no damage, as the digests fit: what wrote it, or what reads it, is another release
        raise CannotResume(
            f"{folder} is as it was written, and its tensors cannot be read: {error}",
            install="the releases that its manifest.json names",
            start='anew with resume="never"',
        ) from error
    return copied(state, elsewhere=lambda value, where: tensors[value.name])


class TargetLayout:
    """How the tensors of a run lie on its processes, for tensors of a state that are to lie alike.

    What the state of a part has in the same place is like it. An optimizer that has not stepped has no state: what it keeps of
    a parameter is like the parameter, if it has its shape, and so is what anybody keeps under the name of one.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._states: dict[str, Any] = {}
        self._named = dict(named_parameters(parts["model"])) if "model" in parts else {}

    def like(self, where: Where, shape: Any) -> Any:
        """Return a tensor in parts that one of this place and shape is to lie as; None where it is to be whole."""
        where = tuple(plain_name(key) if isinstance(key, str) else key for key in where)
        alike: tuple[Any, ...] = (self._in_part(where), self._of_optimizer(where), self._named.get(where[-1]))
        for found in alike:
            if hasattr(found, "full_tensor") and found.shape == shape:
                return found
        return None

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
            keyed = {str(key): one for key, one in (part.items() if isinstance(part, Mapping) else enumerate(part))}
            part, place = keyed.get(str(where[place])), place + 1
        numbers = where[place + 1 : place + 2]
        if not hasattr(part, "param_groups") or where[place] != STATE or type(numbers[0] if numbers else None) is not int:
            return None
        parameters = [parameter for group in part.param_groups for parameter in group["params"]]
        return parameters[numbers[0]] if numbers[0] < len(parameters) else None


def _at(tree: Any, where: Where) -> Any:
    for key in where:
        if isinstance(tree, Mapping):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and type(key) is int and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree
