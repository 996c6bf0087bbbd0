"""Copy a state before loading it, so that the same state can be loaded again later.

`load_state_dict` may keep the object it receives, or modify it: CyclicLR pops a key, and an optimizer on the CPU later updates
the received tensors in place. A second load must not see these changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

EXTRA = "_extra_state"  # load_state_dict passes this entry to set_extra_state without copying it


def own_copy(state: Any, target: Any = None) -> Any:
    """Return a copy of a state, including its containers and tensors, for `target` to load.

    To save memory, do not copy tensors that the target itself copies: all tensors of a module, and tensors that an optimizer
    moves to another device.
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
            # An optimizer does not move its step count (ndim 0), even if the parameters are on a GPU.
            yield from (
                value for value in values if getattr(value, "ndim", 0) and getattr(value, "device", None) not in devices
            )
