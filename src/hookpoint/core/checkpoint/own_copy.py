"""Copy a state before loading it, if the same state is loaded again later.

An object may store, change or empty what its `load_state_dict` receives: CyclicLR pops a key, and an optimizer on the host
updates the tensors it received in place. A second load must not see these changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

EXTRA = "_extra_state"  # set_extra_state passes it to a module unchanged


def own_copy(state: Any, target: Any = None) -> Any:
    """Return a copy of a state for `target` to load, with its own containers and tensors.

    To save memory, tensors that the target copies anyway are not copied here: all tensors in a module, and tensors that an
    optimizer moves to another device.
    """
    return copy.deepcopy(state, {id(tensor): tensor for tensor in _copied_by_loading(target, state)})


def _copied_by_loading(target: Any, state: Any) -> Iterator[Any]:
    if not isinstance(state, Mapping):
        return
    if hasattr(target, "named_parameters"):
        yield from (value for name, value in state.items() if hasattr(value, "device") and not str(name).endswith(EXTRA))
    elif hasattr(target, "param_groups") and isinstance(state.get("state"), Mapping):
        devices = {getattr(parameter, "device", None) for group in target.param_groups for parameter in group["params"]}
        for slots in state["state"].values():
            values = slots.values() if isinstance(slots, Mapping) else ()
            # A step count is not moved, even if the parameters are on a GPU.
            yield from (
                value for value in values if getattr(value, "ndim", 0) and getattr(value, "device", None) not in devices
            )
