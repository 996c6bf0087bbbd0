"""TensorBuffer: tensors of any dtypes as one flat message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

HEAD = 16  # bytes: two numbers
ALIGNED = 16


class TensorBuffer:
    """Store a number and tensors with the shapes of others, each of which may be missing, in one buffer on the host."""

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        self._like = [(one.shape, one.dtype, one.numel() * one.element_size()) for one in like]
        self._flags = HEAD + len(like)
        self._offsets = [*accumulate((_aligned(size) for _, _, size in self._like), initial=_aligned(self._flags))]
        self.bytes = torch.zeros(self._offsets.pop(), dtype=torch.uint8)
        self._head = self.bytes[:HEAD].view(torch.int64)

    @property
    def number(self) -> int:
        return int(self._head[0])

    @number.setter
    def number(self, number: int) -> None:
        self._head[0] = number

    def put(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Copy tensors into the buffer."""
        self.bytes[HEAD : self._flags] = torch.tensor([tensor is not None for tensor in tensors], dtype=torch.uint8)
        for tensor, view in zip(tensors, self._views(), strict=True):
            if tensor is not None:
                view.copy_(tensor.to_dense().detach() if tensor.is_sparse else tensor.detach())

    def tensors(self) -> list[torch.Tensor | None]:
        """Return views of the tensors in the buffer."""
        flags = self.bytes[HEAD : self._flags].tolist()
        return [view if is_there else None for view, is_there in zip(self._views(), flags, strict=True)]

    def _views(self) -> list[torch.Tensor]:
        pairs = zip(self._offsets, self._like, strict=True)
        return [self.bytes[offset : offset + size].view(dtype).view(shape) for offset, (shape, dtype, size) in pairs]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
