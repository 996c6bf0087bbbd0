"""list_digest: recognize a list whose items have changed."""

from __future__ import annotations

import hashlib
from typing import Any

ITEMS = 8  # items of a list that are compared
NUMBERS = 8  # numbers of a tensor that are compared
CHARACTERS = 64


def list_digest(data: Any, start: int) -> str | None:
    """Return a digest of some items of a list or tuple, from `start` on. Return None for other types of data or items.

    The items may be numbers, strings, tensors, arrays, and tuples, lists and dicts of these.
    """
    if type(data) not in (list, tuple) or start >= len(data):
        return None
    last = len(data) - 1 - start
    count = min(ITEMS, last + 1)
    some = [data[start + number * last // max(1, count - 1)] for number in range(count)]
    try:
        return hashlib.sha256(repr(list(map(_plain, some))).encode(errors="surrogatepass")).hexdigest()[:8]
    except (TypeError, RuntimeError, RecursionError):
        return None


def _plain(item: Any) -> Any:
    """Return a value whose repr is the same in every process. Raise TypeError for objects that may not have one."""
    kind = type(item)
    if kind in (bool, int, float, type(None)):
        return item
    if kind in (str, bytes):
        return [len(item), item[:CHARACTERS]]
    if kind in (list, tuple):
        return [_plain(part) for part in item[:ITEMS]]
    if kind is dict:
        return [(_plain(name), _plain(item[name])) for name in list(item)[:ITEMS]]
    if (
        f"{kind.__module__}.{kind.__name__}" in ("torch.Tensor", "numpy.ndarray")
        and str(getattr(item, "device", "cpu")) == "cpu"
    ):
        first = item[(0,) * (item.ndim - 1)] if item.ndim > 1 and 0 not in item.shape else item.reshape(-1)  # not a copy
        return [list(item.shape), str(item.dtype), _plain(first[:NUMBERS].tolist())]
    raise TypeError(kind.__name__)
