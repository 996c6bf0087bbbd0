"""Own copy: a state for one load, when the same state is loaded again later.

An object may keep, change or empty what its `load_state_dict` receives: CyclicLR pops a key, and an optimizer on the host steps
on the very tensors it was given. A second load must not see any of that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

EXTRA = "_extra_state"  # what a module gets as it is, through set_extra_state


def own_copy(state: Any, part: Any = None) -> Any:
    """Return a copy of a state, containers and tensors, for `part` to load.

    Tensors that the part copies anyway are shared with the original, so that weights are never in memory once more: all of a
    module, and those that an optimizer moves to another device.
    """
    return copy.deepcopy(state, {id(one): one for one in _copied_by_loading(part, state)})


def _copied_by_loading(part: Any, state: Any) -> Iterator[Any]:
    if not isinstance(state, Mapping):
        return
    if hasattr(part, "named_parameters"):
        yield from (one for name, one in state.items() if hasattr(one, "device") and not str(name).endswith(EXTRA))
    elif hasattr(part, "param_groups") and isinstance(state.get("state"), Mapping):
        devices = {getattr(one, "device", None) for group in part.param_groups for one in group["params"]}
        for kept in state["state"].values():
            values = kept.values() if isinstance(kept, Mapping) else ()
            # A number of steps stays where it is, also where parameters are on a GPU.
            yield from (one for one in values if getattr(one, "ndim", 0) and getattr(one, "device", None) not in devices)
