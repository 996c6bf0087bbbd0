"""FeatureRows: collect layer outputs on the host, one row per sample."""

from __future__ import annotations

from collections import deque
from typing import Any

from hookpoint.callbacks._shared.async_array import AsyncArray
from hookpoint.core.errors import BadLoop

MAX_COPYING = 2  # batches whose copies may still be running


class FeatureRows:
    """Collect tensors by name, batch by batch, and concatenate those with the same name.

    The second tensor with the same name in a batch becomes `name#2`, and so on. Copies from a GPU are asynchronous: they are
    read two batches later.

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
        self._batch: dict[str, AsyncArray] = {}
        self._copying: deque[dict[str, AsyncArray]] = deque()
        self._rows: dict[str, list[Any]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, tensor: Any) -> None:
        """Add the output of a layer for the current batch."""
        number, key = 1, name
        while key in self._batch:
            number += 1
            key = f"{name}#{number}"
        tensor = tensor.reshape(1) if tensor.ndim == 0 else tensor
        shape = self._shapes.setdefault(key, tuple(tensor.shape[1:]))
        if tuple(tensor.shape[1:]) != shape:
            raise BadLoop(
                f"{self._owner}: '{key}' has shape {list(tensor.shape[1:])} per sample, but had {list(shape)} before.",
                give="pool=..., a function that makes the shapes equal, such as lambda output: output.mean(1)",
            )
        self._batch[key] = AsyncArray(tensor)

    def keep_batch(self) -> None:
        """Keep the rows of the current batch."""
        if self._batch:
            self._copying.append(self._batch)
            self._batch = {}
        if len(self._copying) > MAX_COPYING:
            self._read_oldest()

    def drop_batch(self) -> None:
        """Discard the rows of the current batch."""
        self._batch = {}

    def joined(self) -> dict[str, Any]:
        """Return all rows by name, and discard them. Each name needs twice its memory meanwhile."""
        import torch

        while self._copying:
            self._read_oldest()
        rows, self._rows, self._shapes = self._rows, {}, {}
        return {name: torch.cat(rows.pop(name)) for name in list(rows)}

    def _read_oldest(self) -> None:
        for name, copy in self._copying.popleft().items():
            self._rows.setdefault(name, []).append(copy.tensor())
