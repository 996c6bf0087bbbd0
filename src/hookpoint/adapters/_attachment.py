"""Attachment: callbacks that are attached to a trainer object, and detached again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

from hookpoint.adapters._hosted_run import HostedRun


class Attachment:
    """An adapter that replaces the methods by which a trainer is started. `detach()` or the end of a `with` restores them."""

    def __init__(self, hosted: HostedRun) -> None:
        self.hosted = hosted
        self._entries: list[tuple[Any, str, Any]] = []

    def wrap_entry(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a method by a function that gets the method and its arguments."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def entry(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs) if self._entries else method(*args, **kwargs)

        self._entries.append((owner, name, (entry, vars(owner).get(name))))
        setattr(owner, name, entry)

    def detach(self) -> None:
        """Leave the trainer as it was before. Call this between two trainings."""
        entries, self._entries = self._entries, []
        for owner, name, (entry, before) in reversed(entries):
            if vars(owner).get(name) is not entry:  # replaced again since; ours only calls the method from now on
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()
