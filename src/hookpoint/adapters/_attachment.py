"""Attachment: attach callbacks to a trainer object and detach them again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

from hookpoint.adapters._hosted_run import HostedRun


class Attachment:
    """An adapter that wraps a trainer's methods for training and evaluation.

    `detach()`, or the end of a `with` block, restores these methods.
    """

    def __init__(self, hosted: HostedRun) -> None:
        self.hosted = hosted
        self._entries: list[tuple[Any, str, Any]] = []

    def wrap_entry(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Replace a method with a wrapper that calls `around` with the original method and the call's arguments."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def entry(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs) if self._entries else method(*args, **kwargs)

        self._entries.append((owner, name, (entry, vars(owner).get(name))))
        setattr(owner, name, entry)

    def detach(self) -> None:
        """Restore the trainer's methods. Do not call this while the trainer is training."""
        entries, self._entries = self._entries, []
        for owner, name, (entry, before) in reversed(entries):
            # If other code has replaced our wrapper, leave that code in place. Our wrapper then only calls the original method.
            if vars(owner).get(name) is not entry:
                continue
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()
