"""LoadWatch: detect calls to `load_state_dict` on a module or an optimizer."""

from __future__ import annotations

from typing import Any


class LoadWatch:
    """Set a flag when `load_state_dict` is called on a watched module or optimizer.

    If a watched model is copied or pickled, the copy gets a new LoadWatch. Loading into the copy does not set this flag.
    """

    def __init__(self) -> None:
        self.has_loaded = False
        self._handles: list[Any] = []

    def begin(self, *parts: Any) -> None:
        """Start watching these modules and optimizers for calls to `load_state_dict`."""
        self._handles = [part.register_load_state_dict_post_hook(self) for part in parts]

    def end(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def __call__(self, *args: Any) -> None:
        self.has_loaded = True

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadWatch, ()
