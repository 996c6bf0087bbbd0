"""The graph of a loader: the objects that its data passes through. It is stored in the run's record."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hookpoint.core.data.samples import length_of

# Attributes that hold the data inside a loader or dataset, in torch, torchdata and most wrappers.
INSIDE = ("loader", "dataset", "datasets", "source_datapipe", "datapipe")
MAX_DEPTH, MAX_INPUTS, MAX_INDICES = 8, 16, 100_000


def graph_of(data: Any, digest: Callable[[Any], str | None] = lambda data: None, depth: int = 0) -> dict[str, Any]:
    """Return the class and length of a loader or dataset, its inputs, and a digest if it is cheap to compute.

    The inputs are the loaders and datasets that this loader or dataset contains. Each is described in the same way.

    No data is loaded. `digest` returns a dataset's digest, or None if it does not support the dataset.

    >>> graph_of([1, 2, 3])
    {'class': 'list', 'length': 3}
    """
    node: dict[str, Any] = {"class": type(data).__name__}
    length = length_of(data)
    if length is not None:
        node["length"] = length
    found = digest(data) or _digest(data)
    if found is not None:
        node["digest"] = found
    inputs = list(_inputs(data)) if depth < MAX_DEPTH else []
    if inputs:
        node["inputs"] = [graph_of(item, digest, depth + 1) for item in inputs[:MAX_INPUTS]]
    return node


def _inputs(data: Any) -> Iterator[Any]:
    own = getattr(data, "__dict__", {})  # read only plain attributes, because a property could load data
    for name in INSIDE:
        inside = own.get(name)
        if isinstance(inside, list | tuple) and name == "datasets":
            yield from inside
        elif isinstance(inside, Mapping) and name == "datasets":
            yield from inside.values()
        elif hasattr(inside, "__iter__") or hasattr(inside, "__getitem__"):
            yield inside


def _digest(data: Any) -> str | None:
    """Return the fingerprint of a Hugging Face dataset, or a digest of the indices of a subset."""
    own = getattr(data, "__dict__", {})
    if isinstance(own.get("_fingerprint"), str):
        return str(own["_fingerprint"])
    indices = own.get("indices")
    if isinstance(indices, range):
        return hashlib.sha256(repr(indices).encode()).hexdigest()[:8]
    if isinstance(indices, Sequence) and len(indices) <= MAX_INDICES:
        try:
            return hashlib.sha256(array("q", indices).tobytes()).hexdigest()[:8]
        except (TypeError, OverflowError):
            return None
    return None
