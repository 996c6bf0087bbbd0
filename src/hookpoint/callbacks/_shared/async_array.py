"""AsyncArray: the numbers of a tensor as they are now, read later and elsewhere."""

from __future__ import annotations

from typing import Any

KNOWN_TO_NUMPY = ("torch.float16", "torch.float32", "torch.float64")  # bfloat16 and 8-bit floats are not


class AsyncArray:
    """A copy of a tensor that is on its way to the host; `numpy.asarray` and `float` wait until it is there.

    On a GPU the copy is queued behind the work so far, so that it is made before the tensor changes, and nobody waits for it
    here; whoever reads it waits for this copy, and not for what was queued later. Of a sharded tensor it has the part that is
    on this device, of a sparse one its values.
    """

    def __init__(self, tensor: Any) -> None:
        tensor = tensor.detach()
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if getattr(tensor, "is_sparse", False):
            tensor = tensor._values()
        self._copied: Any = None
        self._copy = tensor.clone() if not tensor.is_cuda else self._queue(tensor)

    def _queue(self, tensor: Any) -> Any:
        import torch

        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(tensor.device))
        return host

    @property
    def is_there(self) -> bool:
        """Whether reading it waits for nothing."""
        return bool(self._copied.query()) if self._copied is not None else bool(self._copy.is_cpu)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._copied is not None:
            self._copied.synchronize()
        values = self._copy.cpu()
        if values.is_floating_point() and str(values.dtype) not in KNOWN_TO_NUMPY:
            values = values.float()
        array = values.numpy(force=True)  # which a complex one needs where it is conjugated
        return array if dtype is None else array.astype(dtype)

    def tensor(self) -> Any:
        """Return the copy as a tensor on the host, in memory that is not pinned."""
        if self._copied is None:
            return self._copy.cpu()
        self._copied.synchronize()
        return self._copy.clone()

    def __float__(self) -> float:
        return float(self.__array__().mean())


def as_of_now(value: Any) -> Any:
    """Return a tensor as a AsyncArray, and anything else as a numpy array of its own: what `numpy.asarray` takes later."""
    if hasattr(value, "detach"):
        return AsyncArray(value)
    import numpy

    return numpy.array(value)
