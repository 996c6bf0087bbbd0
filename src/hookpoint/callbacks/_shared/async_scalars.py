"""AsyncScalars: values on a device as floats, a little later, without making the training wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

# About as many as there are steps between two log steps. With 50, the copy would fall on iterations whose costs are sampled,
# one in 64, from the eighth on, and would be taken for the price of every step; a multiple of 48 never is one of those.
MOST_WAITING = 48


class AsyncScalars:
    """Take in values with a tag each, and hand them out as floats, in the order they came, when they are there.

    What is on the host is there at once. Values on a GPU gather until `start` or until there are 48, then one copy of all of
    them is queued behind the training's work; they are there when an event behind that copy has passed. On other devices,
    where nothing tells, they are read when the next ones start. Whoever takes with `wait` waits for all.
    """

    def __init__(self) -> None:
        self._there: list[tuple[Any, float]] = []
        self._gathered: list[tuple[Any, Any]] = []
        self._started: deque[Group] = deque()

    def add(self, tag: Any, value: Any) -> None:
        """Take in a number or a tensor of one element."""
        if not self._gathered and not self._started and is_on_host(value):
            self._there.append((tag, float(value)))
            return
        self._gathered.append((tag, value))
        if len(self._gathered) >= MOST_WAITING:
            self.start()

    def start(self) -> None:
        """Let what was gathered be on its way."""
        if self._gathered:
            self._started.append(Group(self._gathered))
            self._gathered = []

    def take(self, *, wait: bool = False) -> list[tuple[Any, float]]:
        """Return what is there by now, or all of it."""
        found, self._there = self._there, []
        if wait:
            self.start()
        while self._started and (wait or self._started[0].is_there() or len(self._started) > 2):
            found += self._started.popleft().floats()
        return found

    def __bool__(self) -> bool:
        return bool(self._there or self._gathered or self._started)

    def clear(self) -> None:
        """Forget what has not been taken."""
        self._there, self._gathered = [], []
        self._started.clear()


class Group:
    """Values that are on their way to the host together."""

    def __init__(self, tagged: list[tuple[Any, Any]]) -> None:
        self._tags = [tag for tag, _ in tagged]
        values = [value for _, value in tagged]
        self._read: Callable[[], list[float]] = lambda: [float(value) for value in values]
        self.is_there: Callable[[], bool] = lambda: False
        if all(getattr(value, "is_cuda", False) for value in values) and len({value.device for value in values}) == 1:
            self.is_there, self._read = _copy(values)

    def floats(self) -> list[tuple[Any, float]]:
        return list(zip(self._tags, self._read(), strict=True))


def is_on_host(value: Any) -> bool:
    """Say whether reading a value waits for nothing."""
    return isinstance(value, int | float) or getattr(value, "is_cpu", False) or type(value).__module__ == "numpy"


def _copy(values: list[Any]) -> tuple[Callable[[], bool], Callable[[], list[float]]]:
    """Queue one copy of all values into pinned memory; return what tells whether it is done, and what gives the floats."""
    import torch

    with torch.no_grad():
        if len({value.dtype for value in values}) > 1:
            values = [value.to(torch.float64) for value in values]
        together = torch.stack([value.reshape(()) for value in values])
        host = torch.empty(len(values), dtype=together.dtype, pin_memory=True)
        host.copy_(together, non_blocking=True)
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return copied.query, read
