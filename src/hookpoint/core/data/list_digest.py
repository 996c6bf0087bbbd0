"""list_digest: recognize a list whose items have changed."""

from __future__ import annotations

import hashlib
from typing import Any

ITEMS = 8  # items of a list that are compared
NUMBERS = 8  # numbers of a tensor that are compared


def list_digest(data: Any) -> str | None:
    """Return a digest of some items of a list or tuple, or None for other data and for other items.

    The items may be numbers, strings, tensors, arrays, and tuples, lists and dicts of these.
    """
    if type(data) not in (list, tuple) or not data:
        return None
    some = [data[number * (len(data) - 1) // max(1, min(ITEMS, len(data)) - 1)] for number in range(min(ITEMS, len(data)))]
    try:
        return hashlib.sha256(repr(list(map(_plain, some))).encode(errors="surrogatepass")).hexdigest()[:8]
    except (TypeError, RuntimeError, RecursionError):
        return None


def _plain(item: Any) -> Any:
    """Return a value whose repr is the same in every process. Raise TypeError for objects that may not have one."""
    kind = type(item)
    if kind in (bool, int, float, str, bytes, type(None)):
        return item
    if kind in (list, tuple):
        return [_plain(part) for part in item[:ITEMS]]
    if kind is dict:
        return [(_plain(name), _plain(item[name])) for name in list(item)[:ITEMS]]
    if (
        f"{kind.__module__}.{kind.__name__}" in ("torch.Tensor", "numpy.ndarray")
        and str(getattr(item, "device", "cpu")) == "cpu"
    ):
        return [list(item.shape), str(item.dtype), _plain(item.reshape(-1)[:NUMBERS].tolist())]
    raise TypeError(kind.__name__)
