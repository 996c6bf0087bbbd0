"""StaticBatch: device buffers at fixed addresses for batches with the same signature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import Any

import torch

from hookpoint.core.errors import BadData
from hookpoint.core.fields import is_dataclass
from hookpoint.engine.data.as_loader import map_tensors

Signature = tuple[Hashable, ...]


def signature_of(batch: Any) -> Signature:
    """Return the signature of a batch: its structure, the shapes, strides and dtypes of its tensors, and its other values.

    All batches that one CUDA graph processes have the same signature.

    >>> signature_of((torch.zeros(4, 2), 1)) == signature_of((torch.ones(4, 2), 1))
    True
    >>> signature_of((torch.zeros(4, 2), 1)) == signature_of((torch.zeros(3, 2), 1))
    False
    """
    return tuple(_described(batch))


def _described(value: Any) -> Iterator[Hashable]:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested:
        yield value.shape, value.stride(), value.dtype
    elif isinstance(value, str | int | float | None):
        yield type(value), value
    elif _has_fields(value):
        fields = _fields(value)
        yield type(value), *(name for name, _ in fields)
        for _, field in fields:
            yield from _described(field)
    else:
        kind = "a sparse or nested tensor" if isinstance(value, torch.Tensor) else f"an object of type {type(value).__name__}"
        cure = "dense tensors and numbers, in tuples, lists, dicts or dataclasses"
        raise BadData(f"cuda_graph=True cannot capture a batch with {kind}.", give=cure)


def _has_fields(value: Any) -> bool:
    return isinstance(value, tuple | list | MutableMapping) or is_dataclass(value)


def _fields(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, MutableMapping):
        return list(value.items())
    if is_dataclass(value):
        hidden = [field.name for field in dataclasses.fields(value) if not field.init]
        if hidden:
            what = f"cuda_graph=True cannot capture a batch of {type(value).__name__}: its field '{hidden[0]}' has init=False."
            raise BadData(what, give="a dataclass with init=True for all fields")
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return list(enumerate(value))


def is_on_host(batch: Any) -> bool:
    """Return whether all tensors in a batch are on the CPU."""
    if isinstance(batch, torch.Tensor):
        return batch.is_cpu
    values = [value for _, value in _fields(batch)] if _has_fields(batch) else []
    return all(is_on_host(value) for value in values)


class StaticBatch:
    """A batch whose tensors have fixed addresses. Other batches with the same signature are copied into these tensors."""

    def __init__(self, batch: Any) -> None:
        self._buffers: list[torch.Tensor] = []
        self.batch: Any = map_tensors(batch, self._buffer)
        self._devices = {buffer.device.type for buffer in self._buffers}

    def check_device(self, device: torch.device) -> None:
        """Raise BadData if a tensor is on another device, because its values would be captured as constants."""
        for other in self._devices - {device.type}:
            what = f"cuda_graph=True cannot capture a batch that still has a tensor on {other!r} after it was moved to the GPU."
            raise BadData(what, give="tensors that `batch.to(device)` moves")

    def _buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        buffer = tensor.detach().clone()
        self._buffers.append(buffer)
        return buffer

    @torch.no_grad()
    def copy(self, batch: Any) -> None:
        """Copy the tensors of another batch into this batch, on the current stream."""
        if batch is not self.batch:
            map_tensors(batch, self._copying())

    def _copying(self) -> Callable[[torch.Tensor], torch.Tensor]:
        buffers = iter(self._buffers)
        return lambda tensor: next(buffers).requires_grad_(False).copy_(tensor, non_blocking=True)
