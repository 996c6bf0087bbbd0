"""FeatureRows: what layers compute for each sample, gathered on the host batch by batch."""

from __future__ import annotations

from collections import deque
from typing import Any

from hookpoint.callbacks._shared.async_array import AsyncArray
from hookpoint.core.errors import BadLoop

UNDER_WAY = 2  # batches whose copies nobody waits for yet


class FeatureRows:
    """Take in tensors by name, a batch after the other, and put those of one name together.

    A name that comes again within a batch is `name#2`, and so on. Copies from a GPU are queued, and waited for two batches
    later, when they are there.

    >>> import torch
    >>> rows = FeatureRows("FeatureTap")
    >>> for batch in ([1.0, 2.0], [3.0]):
    ...     rows.add("head", torch.tensor(batch))
    ...     rows.keep_batch()
    >>> rows.joined()
    {'head': tensor([1., 2., 3.])}
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._now: dict[str, AsyncArray] = {}
        self._under_way: deque[dict[str, AsyncArray]] = deque()
        self._parts: dict[str, list[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, tensor: Any) -> None:
        """Take in what a layer has computed for the batch that is under way."""
        number, key = 1, name
        while key in self._now:
            number += 1
            key = f"{name}#{number}"
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
        shape = self._shapes.setdefault(key, tuple(tensor.shape[1:]))
        if tuple(tensor.shape[1:]) != shape:
            raise BadLoop(
                f"{self._owner}: '{key}' gave {list(shape)} for each sample, and now {list(tensor.shape[1:])}.",
                give="pool=..., a function that makes them alike, such as lambda output: output.mean(1)",
            )
        self._now[key] = AsyncArray(tensor)

    def keep_batch(self) -> None:
        """The batch that was under way counts."""
        if self._now:
            self._under_way.append(self._now)
            self._now = {}
        if len(self._under_way) > UNDER_WAY:
            self._settle()

    def drop_batch(self) -> None:
        """The batch that was under way does not count."""
        self._now = {}

    def joined(self) -> dict[str, Any]:
        """Return all rows by name, and forget them; each name needs twice its memory while it is put together."""
        import torch

        while self._under_way:
            self._settle()
        parts, self._parts = self._parts, {}
        self._shapes = {}
        return {name: torch.cat(parts.pop(name)) for name in list(parts)}

    def _settle(self) -> None:
        for name, late in self._under_way.popleft().items():
            self._parts.setdefault(name, []).append(late.tensor())
