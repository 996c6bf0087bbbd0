"""Encoding: losslessly convert a tree to a format that supports fewer types than Python.

A tree is a value that `hookpoint.storage.checkpoint.tree.copied` returns, such as nested dicts and lists.

A value whose type the format does not support becomes a dict with one key that starts with `$`, such as `{"$tuple": [1, 2]}`. A
user's dict that looks like this, or has keys that the format does not support, becomes `{"$dict": [[key, value], …]}`. Floats
are restored bit for bit, and keys keep their types.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import is_
from typing import Any

from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder
from hookpoint.storage.checkpoint.tree import MAPPINGS, PLAIN, SEQUENCES, is_array

MAX_JSON_BITS = 64  # some JSON readers round longer integers, so a longer integer is stored as a string
MAX_TORCH_BITS = 1024  # torch.load with weights_only=True rejects integers of 2040 bits or more


def for_json(value: Any) -> Any:
    """Convert the tree to JSON types."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return {"$float": struct.pack(">d", value).hex()}
    if kind is int and value.bit_length() > MAX_JSON_BITS:
        return {"$int": hex(value)}
    if kind is complex:
        return {"$complex": [for_json(value.real), for_json(value.imag)]}
    if kind is bytes:
        return {"$bytes": _text(value)}
    if kind is ShardedPlaceholder:
        return {"$elsewhere": value.name}
    if is_array(value):
        return {"$ndarray": [value.dtype.str, list(value.shape), _text(value.tobytes())]}
    if kind is dict and all(type(key) is str for key in value) and not _looks_tagged(value):
        return {key: for_json(item) for key, item in value.items()}
    if kind in MAPPINGS:
        return {f"${kind.__name__}": [[for_json(key), for_json(item)] for key, item in value.items()]}
    if kind in SEQUENCES:
        items = list(value) if _are_ints(value, MAX_JSON_BITS) else [for_json(item) for item in value]
        return items if kind is list else {f"${kind.__name__}": items}
    return value


def for_torch(value: Any) -> Any:
    """Convert the tree to types that torch.load accepts with weights_only=True. Tensors are not changed."""
    kind = type(value)
    if kind is int and value.bit_length() > MAX_TORCH_BITS:
        return {"$int": hex(value)}
    if kind is bytes and not value:  # pickle stores empty bytes under a name that torch.load rejects
        return {"$bytes": ""}
    if kind is ShardedPlaceholder:
        return {"$elsewhere": value.name}
    if is_array(value):
        return {"$ndarray": [value.dtype.str, list(value.shape), _tensor(value)]}
    if kind in MAPPINGS:
        if _looks_tagged(value) or not all(map(_is_key_for_torch, value)):
            return {f"${kind.__name__}": [[for_torch(key), for_torch(item)] for key, item in value.items()]}
        return _with_values(value, for_torch)
    if kind in (list, tuple) and _are_ints(value, MAX_TORCH_BITS):
        return kind(value)
    if kind in SEQUENCES:
        items = [for_torch(item) for item in value]
        is_allowed = kind in (list, tuple) or (kind is set and all(map(is_, items, value)))
        return kind(items) if is_allowed else {f"${kind.__name__}": items}
    return value


def restored(value: Any) -> Any:
    """Convert a tree back to its original types."""
    kind = type(value)
    if kind in MAPPINGS:
        if kind is dict and _looks_tagged(value):
            ((tag, content),) = value.items()
            return _RESTORE[tag[1:]](content)
        return _with_values(value, restored)
    if kind in (list, tuple):
        return kind(value) if PLAIN.issuperset(map(type, value)) else kind(map(restored, value))
    return value


def _are_ints(values: Collection[Any], max_bits: int) -> bool:
    """Return whether all values are integers of at most `max_bits` bits.

    Such a list needs no conversion. This check saves time for the state of a random number generator, which has 625 integers.
    """
    return set(map(type, values)) == {int} and max(max(values).bit_length(), min(values).bit_length()) <= max_bits


def _looks_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and all(type(key) is str and key.startswith("$") for key in value)


def _with_values(mapping: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a mapping of the same type with converted values. Also convert the `_metadata` attribute of a state dict."""
    copy = type(mapping)()
    for key, value in mapping.items():
        copy[key] = convert(value)
    put_versions(copy, convert(versions_of(mapping)))
    return copy


def _is_key_for_torch(key: Any) -> bool:
    """Return whether torch.load accepts a key unchanged. A tuple is accepted if all of its items are."""
    return all(map(_is_key_for_torch, key)) if type(key) is tuple else for_torch(key) is key


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _tensor(array: Any) -> Any:
    import torch

    data = bytearray(array.tobytes())
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _array(content: list[Any]) -> Any:
    import numpy

    kind, shape, data = content
    raw = base64.b64decode(data) if isinstance(data, str) else data.numpy().tobytes()
    return numpy.frombuffer(bytearray(raw), dtype=numpy.dtype(kind)).reshape(shape)


def _mapping(kind: Callable[[dict[Any, Any]], Any], pairs: list[Any]) -> Any:
    return kind({restored(key): restored(value) for key, value in pairs})


def _sequence(kind: Callable[[Iterable[Any]], Any], items: list[Any]) -> Any:
    return kind(map(restored, items))


_RESTORE: dict[str, Callable[[Any], Any]] = {
    "float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "int": lambda text: int(text, 16),
    "complex": lambda pair: complex(restored(pair[0]), restored(pair[1])),
    "bytes": base64.b64decode,
    "ndarray": _array,
    "elsewhere": ShardedPlaceholder,
    **{kind.__name__: partial(_mapping, kind) for kind in MAPPINGS},
    **{kind.__name__: partial(_sequence, kind) for kind in SEQUENCES},
}
