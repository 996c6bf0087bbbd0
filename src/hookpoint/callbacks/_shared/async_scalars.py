"""AsyncScalars: read device scalars as floats without making training wait for them."""

from __future__ import annotations

from collections import deque
from typing import Any

from hookpoint.callbacks._shared.async_array import AsyncArray

# The size of a group. It is close to 50, the default number of steps between log steps. Step costs are sampled at iteration 8
# and every 64 iterations after that. With groups of 50, some copies would fall on sampled iterations and inflate the measured
# cost. With groups of 48, no copy falls on a sampled iteration.
MAX_PENDING = 48


class AsyncScalars:
    """Collect tagged values and return them as floats, in order, once they are on the host.

    Host values are available immediately. GPU values are collected until `start` is called or there are 48 of them. The
    collected values are then copied together, and the copy is queued behind the training work. Other devices have no event to
    query, so their values are read once two later groups have started. `take(wait=True)` waits for all values.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard all values that have not been taken."""
        self._ready: list[tuple[Any, float]] = []
        self._pending: list[tuple[Any, Any]] = []
        self._started: deque[tuple[tuple[Any, ...], Any]] = deque()

    def add(self, tag: Any, value: Any) -> None:
        """Add a number or a tensor with one element."""
        if not self._pending and not self._started and is_on_host(value):
            self._ready.append((tag, float(value)))
            return
        self._pending.append((tag, value))
        if len(self._pending) >= MAX_PENDING:
            self.start()

    def start(self) -> None:
        """Start copying the values collected so far."""
        if self._pending:
            tags, values = zip(*self._pending, strict=True)
            self._started.append((tags, _copy(values)))
            self._pending = []

    def take(self, *, wait: bool = False) -> list[tuple[Any, float]]:
        """Return the values that are already on the host or, with `wait`, all of them."""
        ready, self._ready = self._ready, []
        if wait:
            self.start()
        while self._started and (wait or len(self._started) > 2 or getattr(self._started[0][1], "is_ready", False)):
            tags, values = self._started.popleft()
            ready += zip(tags, values.tensor().tolist() if isinstance(values, AsyncArray) else map(float, values), strict=True)
        return ready

    def __bool__(self) -> bool:
        return bool(self._ready or self._pending or self._started)


def is_on_host(value: Any) -> bool:
    """Return whether a value can be read without waiting."""
    return isinstance(value, int | float) or getattr(value, "is_cpu", False) or type(value).__module__ == "numpy"


def _copy(values: tuple[Any, ...]) -> Any:
    """Return the values as one AsyncArray if all of them are on the same GPU. Otherwise, return them unchanged."""
    if not all(getattr(value, "is_cuda", False) for value in values) or len({value.device for value in values}) > 1:
        return values
    import torch

    with torch.no_grad():
        if len({value.dtype for value in values}) > 1:
            values = tuple(value.to(torch.float64) for value in values)
        return AsyncArray(torch.stack([value.reshape(()) for value in values]))
