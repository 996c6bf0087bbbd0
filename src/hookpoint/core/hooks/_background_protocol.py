"""Background: the protocol for calling the handlers of asynchronous callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Background(Protocol):
    """Call the handlers of asynchronous callbacks. `entry` is the `Entry` object of the callback."""

    def send(self, entry: Any, point: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        """Copy the arguments, and call the function with the copies later, on another thread."""

    def call(self, entry: Any, point: str, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
        """Call the function now, with a read-only run."""
