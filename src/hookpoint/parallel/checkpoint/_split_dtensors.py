"""Taken apart: a state without the tensors of which each process has a part, and those tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder


class SplitDTensors:
    """Take the sharded tensors out of a state: `rest` has what stands for each, `tensors` has them by their names there.

    Names are those of the places, as `parts.model.0.weight`, and the same on all processes. A tensor that is in several places,
    as tied weights are, is there once. One that is no part but a share of a sum is made whole, by all who have one, together;
    so is one that fewer than `fewest` processes have: where models differ, others have another tensor of that name.
    """

    def __init__(self, state: Mapping[str, Any], *, fewest: float = 0) -> None:
        self._fewest = fewest
        self.tensors: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self.rest: dict[str, Any] = self._taken(state, ())

    def _taken(self, value: Any, where: tuple[str, ...]) -> Any:
        if hasattr(value, "full_tensor"):  # a DTensor; to import its class takes a second, also where there is none
            return self._tensor(value.detach(), where)
        if isinstance(value, Mapping):
            found = {key: self._taken(one, (*where, str(key))) for key, one in value.items()}
            return value if all(found[key] is one for key, one in value.items()) else _like(value, found)
        if type(value) in (list, tuple):
            items = [self._taken(one, (*where, str(number))) for number, one in enumerate(value)]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
        return value

    def _tensor(self, tensor: Any, where: tuple[str, ...]) -> Any:
        if tensor.device_mesh.size() < self._fewest or any(placement.is_partial() for placement in tensor.placements):
            return tensor.full_tensor().cpu()
        local = tensor.to_local()
        # Not its address: a part without numbers has none, and the names are to be the same everywhere.
        memory = (
            local.untyped_storage()._cdata,
            local.storage_offset(),
            local.shape,
            local.stride(),
            local.dtype,
            tensor.shape,
        )
        if memory not in self._names:
            name = ".".join(where)
            while name in self.tensors:  # names may have dots in them
                name += "'"
            self._names[memory] = name
            self.tensors[name] = tensor
        return ShardedPlaceholder(self._names[memory])


def _like(given: Any, found: dict[Any, Any]) -> Any:
    """Return the same kind of mapping; a module's state dict also has the versions of its layers."""
    made = type(given)(found)
    versions = versions_of(given)
    if versions is not None:
        put_versions(made, versions)
    return made
