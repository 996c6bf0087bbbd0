"""Floats: convert logged values to floats. Tensors on the host are converted when logged, tensors on a device when read.

The training thread neither waits for a device tensor nor copies it. With torch, `engine/device_floats.py` reads device tensors,
many at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from hookpoint.core.errors import BadValue

ON_HOST = ("builtins", "decimal", "fractions", "numpy")  # packages whose numbers are always on the host

# A function that starts converting values to floats. It is called on the training thread and does not wait. It returns a second
# function, which is called on another thread, may wait for the device, and returns the floats.
Floats = Callable[[Sequence[Any]], Callable[[], list[float]]]
MayWait = Callable[[], AbstractContextManager[None]]  # the training thread waits for the device only inside this context


def floats_one_by_one(values: Sequence[Any]) -> Callable[[], list[float]]:
    """Return a function that converts the values to floats. An engine may use a faster one, which copies all values at once."""
    return lambda: [float(value) for value in values]


def as_scalar(name: str, value: Any) -> Any:
    """Convert a logged value to a number or a detached device tensor. Raise BadValue if it is not a scalar."""
    kind = type(value)
    if kind is float or kind is int:
        return value
    if getattr(value, "is_cpu", False):  # reading a host tensor is cheaper than detaching it, and a number needs less memory
        try:
            number = value.item()
        except (RuntimeError, ValueError):  # the tensor has more than one element, or no data
            number = None
        if number is not None and type(number) is not complex:
            return number
    if isinstance(value, str | bytes) or value is None:
        raise BadValue(f"'{name}' is {value!r}; expected a number.", write=f"run.put_text('{name}', ...)")
    if math.prod(getattr(value, "shape", None) or (1,)) != 1:
        raise BadValue(
            f"'{name}' has shape {tuple(value.shape)}; expected a scalar.",
            log="its mean, or each element under its own name",
            write=f"run.put_histogram('{name}', ...) for its distribution",
        )
    _check_real(name, value)
    if hasattr(value, "detach"):
        return value.item() if getattr(value, "is_cpu", False) else value.detach()
    if hasattr(value, "__float__"):
        if type(value).__module__.split(".")[0] not in ON_HOST:
            return value
        try:
            return float(value.item() if hasattr(value, "item") else value)  # float() rejects NumPy arrays with dimensions
        except (TypeError, ValueError):
            pass  # the array does not contain numbers
    raise BadValue(f"'{name}' is {value!r}; expected a number.", log="a number or a one-element tensor")


def _check_real(name: str, value: Any) -> None:
    """Raise BadValue if the element is complex or has no value."""
    if getattr(value, "is_meta", False):
        raise BadValue(f"'{name}' is on the meta device and has no value.", log="a tensor that has data, on the CPU or a GPU")
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "is_complex", False) or getattr(dtype, "kind", "") == "c":  # torch, then NumPy
        raise BadValue(f"'{name}' is complex; expected a real number.", log="its magnitude, or each part under its own name")
