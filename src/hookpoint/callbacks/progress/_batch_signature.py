"""Batch signatures: the shapes and types in a batch, which determine an iteration's FLOPs. Works without torch."""

from __future__ import annotations

from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from hookpoint.core.fields import field_values, named_fields

_of_array = attrgetter("shape", "dtype")


class Flops(NamedTuple):
    """Model FLOPs, and hardware FLOPs, which include the operations that activation checkpointing repeats."""

    model: float = 0
    hardware: float = 0

    def plus(self, other: Flops, scale: float = 1) -> Flops:
        return Flops(self.model + scale * other.model, self.hardware + scale * other.hardware)


class Counted:
    """The FLOPs of a batch with a certain signature, and the number of such batches timed since the last log step."""

    __slots__ = ("elements", "flops", "times")

    def __init__(self, elements: int, flops: Flops) -> None:
        self.elements, self.flops, self.times = elements, flops, 0


def signature_of(batch: Any) -> Any:
    """Return the shapes and types of the arrays in a batch, at any depth.

    >>> signature_of(([1, 2.5], {"length": 7}))
    ((<class 'int'>, <class 'float'>), (<class 'int'>,))
    """
    kind = type(batch)
    # Most batches are an array, or a tuple, list or dict of arrays. For these, the code below takes half as long as
    # `_nested_signature`.
    try:
        if kind is tuple or kind is list:
            return tuple(map(_of_array, batch))
        return tuple(map(_of_array, batch.values())) if kind is dict else _of_array(batch)
    except AttributeError:
        return _nested_signature(batch)


def _nested_signature(batch: Any) -> Any:
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return shape, getattr(batch, "dtype", None)
    if isinstance(batch, tuple | list):
        return tuple([_nested_signature(field) for field in batch])
    fields = named_fields(batch)
    return tuple([_nested_signature(field) for field in fields.values()]) if fields else type(batch)


def elements_of(batch: Any) -> int:
    """Return the total number of elements in a batch's arrays."""
    shape = getattr(batch, "shape", None)
    return sum(map(elements_of, field_values(batch))) if shape is None else prod(shape)
