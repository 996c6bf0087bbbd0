"""Weights file: named tensors in the safetensors format.

The file is written directly from the tensors' memory and read with the safetensors library. A tensor with more than one name,
such as a tied weight, is stored once, and the header lists its other names under `hookpoint.aliases`.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from hookpoint.storage.checkpoint.tree import is_flat, memory_of

DTYPES = {torch.bool: "BOOL", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}
DTYPES |= {getattr(torch, f"float{bits}"): f"F{bits}" for bits in (16, 32, 64)}
DTYPES |= {getattr(torch, f"{kind}int{bits}"): f"{kind.upper() or 'I'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)}
if find_spec("safetensors") is not None:  # newer releases of safetensors support more types
    _known = getattr(import_module("safetensors.torch"), "_TYPES", {})
    DTYPES |= {dtype: name for name, dtype in _known.items() if dtype is not None}

ALIASES = "hookpoint.aliases"
ALIGNMENT = 8


def is_writable(weights: Any) -> bool:
    """Return whether safetensors is installed and can store these weights."""
    if not is_flat(weights) or find_spec("safetensors") is None:
        return False
    return all(tensor.dtype in DTYPES and _is_name(name) for name, tensor in weights.items())


def write_weights(weights: Mapping[str, torch.Tensor], stream: Any) -> None:
    """Write tensors to a stream. Tensors are copied only if they are not contiguous or not on the host."""
    tensors, aliases = _deduplicated(weights)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    if aliases:
        header["__metadata__"][ALIASES] = json.dumps(aliases)
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + _size(tensor)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    stream.write(memoryview(struct.pack("<Q", len(encoded)) + encoded))
    for tensor in tensors.values():
        if _size(tensor):
            stream.write(_memory(tensor))


def read_weights(source: Path | io.BytesIO) -> dict[str, torch.Tensor]:
    """Read a file, or its content in memory, and return the tensors by name. They are on the host and not memory-mapped."""
    if isinstance(source, io.BytesIO):
        return _read_memory(source.getvalue())
    from safetensors import safe_open

    with safe_open(source, framework="pt", device="cpu") as file:
        weights = {name: file.get_tensor(name).clone() for name in file.offset_keys()}  # get_tensor returns memory-mapped data
        aliases = json.loads((file.metadata() or {}).get(ALIASES, "{}"))
    return weights | {alias: weights[name] for alias, name in aliases.items()}


def _read_memory(data: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    weights: dict[str, torch.Tensor] = {name: tensor.clone() for name, tensor in load(data).items()}
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    aliases = json.loads(header.get("__metadata__", {}).get(ALIASES, "{}"))
    ordered = sorted(weights, key=lambda name: header[name]["data_offsets"])
    return {name: weights[name] for name in ordered} | {alias: weights[name] for alias, name in aliases.items()}


def _deduplicated(weights: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return each tensor once, keyed by its first name, and a dict that maps each further name of a tensor to its first name.

    For alignment, tensors with larger elements come first.
    """
    names: dict[tuple[Any, ...], str] = {}  # the first name for each piece of memory
    first = {name: names.setdefault(memory_of(tensor) or (name,), name) for name, tensor in weights.items()}
    tensors = [(name, tensor) for name, tensor in weights.items() if first[name] == name]
    tensors.sort(key=lambda item: -item[1].element_size())
    return dict(tensors), {name: other for name, other in first.items() if other != name}


def _is_name(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name != "__metadata__"


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _memory(tensor: torch.Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # normalizes strides: a tensor with one element may have any stride
    return memoryview(flat.view(torch.uint8).numpy().data)
