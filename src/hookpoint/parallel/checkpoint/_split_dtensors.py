"""SplitDTensors: separate the sharded tensors of a state from the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder


class SplitDTensors:
    """Take the DTensors out of a state: `rest` has a placeholder for each, `tensors` has them by name.

    A name is the path in the state, such as `parts.model.0.weight`. It is the same on all ranks. A tied tensor is listed once.
    Partial tensors are made full, in a collective of their ranks. So are tensors that fewer than `fewest` ranks share: if
    models differ, other ranks have another tensor of that name.
    """

    def __init__(self, state: Mapping[str, Any], *, fewest: float = 0) -> None:
        self._fewest = fewest
        self.tensors: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self.rest: dict[str, Any] = self._split(state, ())

    def _split(self, value: Any, path: tuple[str, ...]) -> Any:
        if hasattr(value, "full_tensor"):  # a DTensor, whose class takes a second to import
            return self._placeholder(value.detach(), path)
        if isinstance(value, Mapping):
            found = {key: self._split(one, (*path, str(key))) for key, one in value.items()}
            return value if all(found[key] is one for key, one in value.items()) else _like(value, found)
        if type(value) in (list, tuple):
            items = [self._split(one, (*path, str(number))) for number, one in enumerate(value)]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
        return value

    def _placeholder(self, tensor: Any, path: tuple[str, ...]) -> Any:
        if tensor.device_mesh.size() < self._fewest or any(placement.is_partial() for placement in tensor.placements):
            return tensor.full_tensor().cpu()
        local = tensor.to_local()
        # Not the address: an empty shard has none, and names must be the same on all ranks.
        storage = local.untyped_storage()._cdata
        memory = (storage, local.storage_offset(), local.shape, local.stride(), local.dtype, tensor.shape)
        if memory not in self._names:
            name = ".".join(path)
            while name in self.tensors:  # keys may contain dots
                name += "'"
            self._names[memory] = name
            self.tensors[name] = tensor
        return ShardedPlaceholder(self._names[memory])


def _like(mapping: Any, found: dict[Any, Any]) -> Any:
    """Return the same kind of mapping; the state dict of a module also has the versions of its layers."""
    copied = type(mapping)(found)
    if (versions := versions_of(mapping)) is not None:
        put_versions(copied, versions)
    return copied
