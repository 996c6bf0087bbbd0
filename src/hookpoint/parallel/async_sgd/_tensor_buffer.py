"""TensorBuffer: tensors of any types as one flat message."""

from __future__ import annotations

from collections.abc import Sequence

import torch

HEAD = 16  # bytes: two numbers
ALIGNED = 16


class TensorBuffer:
    """A buffer on the host for as many tensors as these, each of which may be missing, and a number."""

    def __init__(self, like: Sequence[torch.Tensor]) -> None:
        self._like = [(one.shape, one.dtype, one.numel() * one.element_size()) for one in like]
        self._flags = HEAD + len(like)
        offset, self._offsets = _aligned(self._flags), []
        for _, _, size in self._like:
            self._offsets.append(offset)
            offset = _aligned(offset + size)
        self.buffer = torch.zeros(offset, dtype=torch.uint8)
        self._head = self.buffer[:HEAD].view(torch.int64)

    @property
    def number(self) -> int:
        return int(self._head[0])

    @number.setter
    def number(self, number: int) -> None:
        self._head[0] = number

    def put(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Copy tensors in."""
        self.buffer[HEAD : self._flags] = torch.tensor([one is not None for one in tensors], dtype=torch.uint8)
        for tensor, place in zip(tensors, self._places(), strict=True):
            if tensor is not None:
                place.copy_(tensor.to_dense().detach() if tensor.is_sparse else tensor.detach())

    def tensors(self) -> list[torch.Tensor | None]:
        """Return the tensors, where they lie in the buffer."""
        there = self.buffer[HEAD : self._flags].tolist()
        return [place if is_there else None for place, is_there in zip(self._places(), there, strict=True)]

    def _places(self) -> list[torch.Tensor]:
        pairs = zip(self._offsets, self._like, strict=True)
        return [self.buffer[offset : offset + size].view(dtype).view(shape) for offset, (shape, dtype, size) in pairs]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
