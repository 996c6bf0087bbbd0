"""ValueSnapshot: copy values, so that the training step cannot change the copies."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from hookpoint.core.errors import BadValue

# Values of these types are not copied.
ATOMS = (str, bytes, int, float, complex, bool, type(None), type, PurePath, BaseException)


class ValueSnapshot:
    """Copy values, including the values inside containers and objects, at any depth.

    Tensors are detached and cloned on their device, without waiting for it; arrays and other host values are copied. An object
    that appears twice is copied once.
    """

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}
        self._on_gpu: list[Any] = []

    def replace(self, value: Any, by: Any) -> None:
        """Make `of(value)` return the object `by` instead of a copy of `value`."""
        self._done[id(value)] = by

    def of(self, value: Any) -> Any:
        """Return a copy of a value.

        Raise BadValue if the value cannot be copied. The original must exist until `ready` is called.
        """
        if isinstance(value, ATOMS):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = self._copy(value)
        return self._done[id(value)]

    def ready(self) -> Callable[[], None] | None:
        """Return a function that a thread must call before it reads the copies, or None if they are on the host.

        This method does not wait for the device.
        """
        self._done.clear()
        tensors = self._on_gpu
        if not tensors:
            return None
        cuda = sys.modules["torch"].cuda
        copied = {}
        for device in {tensor.device for tensor in tensors}:
            copied[device] = cuda.Event()
            copied[device].record(cuda.current_stream(device))

        def wait() -> None:
            """Make this thread's CUDA stream wait for the copies.

            Keep the memory of the copies allocated until the stream has used them.
            """
            cuda.set_device(tensors[0].device)  # a new thread would use the first GPU
            for device, event in copied.items():
                cuda.current_stream(device).wait_event(event)
            for tensor in tensors:
                tensor.record_stream(cuda.current_stream(tensor.device))
            tensors.clear()

        return wait

    def _copy(self, value: Any) -> Any:
        try:
            return self._known(value)
        except BadValue:
            raise
        except Exception as error:
            raise BadValue(
                f"{type(value).__name__} cannot be copied: {type(error).__name__}: {error}",
                name="only values that can be copied in an asynchronous callback",
            ) from error

    def _known(self, value: Any) -> Any:
        if hasattr(value, "detach") and hasattr(value, "clone"):
            twin = value.detach().clone()
            if getattr(twin, "is_cuda", False):
                self._on_gpu.append(twin)
            return twin
        if hasattr(value, "__array_interface__"):
            return value.copy() if hasattr(value, "copy") else copy.deepcopy(value)
        if isinstance(value, list | set | frozenset):
            return type(value)(map(self.of, value))
        if isinstance(value, tuple):
            items = list(map(self.of, value))
            return value._make(items) if hasattr(value, "_make") else type(value)(items)
        if isinstance(value, Mapping):
            return self._mapping(value)
        twin = copy.copy(value)
        if twin is value or not hasattr(value, "__dict__"):
            return twin if twin is value else copy.deepcopy(value)
        self._done[id(value)] = twin
        for name, item in vars(value).items():
            object.__setattr__(twin, name, self.of(item))  # works in a frozen dataclass, too
        return twin

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        if type(value) is dict or not hasattr(type(value), "__setitem__"):
            return {key: self.of(item) for key, item in value.items()}
        self._done[id(value)] = twin = copy.copy(value)
        for key, item in value.items():
            twin[key] = self.of(item)  # type: ignore[index]
        return twin
