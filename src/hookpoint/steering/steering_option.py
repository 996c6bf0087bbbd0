"""The loop option that makes a run accept commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookpoint.core.control.controlled_loop import ControlledLoop
    from hookpoint.steering.steering import Steering


def steering_for(
    workdir: str | os.PathLike[str] | None, *, control: bool, new_profile: Callable[[], Any] | None = None
) -> Callable[[ControlledLoop], Steering] | None:
    """Return what a loop needs to accept commands; None without a workdir, with control=False or HOOKPOINT_CONTROL=0."""
    if workdir is None or not control or os.environ.get("HOOKPOINT_CONTROL", "1") == "0":
        return None
    from hookpoint.steering.steering import Steering  # imported here, because its packages take most of the import time

    return lambda loop: Steering(loop, new_profile)
