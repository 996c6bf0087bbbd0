"""AsyncArray: a snapshot of a tensor that is copied to the host in the background."""

from __future__ import annotations

from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import local_values

NUMPY_FLOATS = ("torch.float16", "torch.float32", "torch.float64")  # NumPy has neither bfloat16 nor 8-bit floats


class AsyncArray:
    """Copy a tensor to the host without waiting. `numpy.asarray`, `float` and `tensor` wait for the copy.

    On a GPU, the copy is queued behind the work submitted so far, so later changes to the tensor do not affect it. Reading the
    values waits only for this copy, not for work that is queued later. For a sharded tensor, only the local shard is copied.
    For a sparse tensor, only its values are copied.
    """

    def __init__(self, tensor: Any) -> None:
        tensor = local_values(tensor.detach())
        self._event: Any = None
        if not tensor.is_cuda:
            self._copy = tensor.clone()
            return
        import torch

        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(tensor.device))

    @property
    def is_ready(self) -> bool:
        """Whether the copy can be read without waiting."""
        return bool(self._copy.is_cpu if self._event is None else self._event.query())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self._on_host()
        if values.is_floating_point() and str(values.dtype) not in NUMPY_FLOATS:
            values = values.float()
        array = values.numpy(force=True)  # force=True resolves a lazy conjugate
        return array if dtype is None else array.astype(dtype)

    def tensor(self) -> Any:
        """Return the copy as a tensor on the host, in memory that is not pinned."""
        values = self._on_host()
        return values if self._event is None else values.clone()

    def __float__(self) -> float:
        return float(self.__array__().mean())

    def _on_host(self) -> Any:
        if self._event is not None:
            self._event.synchronize()
        return self._copy.cpu()


def snapshot(value: Any) -> Any:
    """Copy a value so that `numpy.asarray` can read it later: a tensor as an AsyncArray, anything else as a NumPy array."""
    if hasattr(value, "detach"):
        return AsyncArray(value)
    import numpy

    return numpy.array(value)
