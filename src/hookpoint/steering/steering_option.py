"""Steering option: create the control object that lets a run accept commands."""

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
    """Return a function that creates the control object for a loop.

    Return None if there is no workdir, if `control` is False, or if the environment variable HOOKPOINT_CONTROL is 0.
    """
    if workdir is None or not control or os.environ.get("HOOKPOINT_CONTROL", "1") == "0":
        return None
    from hookpoint.steering.steering import Steering  # imported here, because its imports are slow

    return lambda loop: Steering(loop, new_profile)
