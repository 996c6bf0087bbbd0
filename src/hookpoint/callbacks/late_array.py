"""LateArray: the numbers of a tensor as they are now, read later and elsewhere."""

from __future__ import annotations

from typing import Any


class LateArray:
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if self._copied is not None:
            self._copied.synchronize()
        values = self._copy.cpu()
        if str(values.dtype) == "torch.bfloat16":  # which numpy does not know
            values = values.float()
        return values.numpy() if dtype is None else values.numpy().astype(dtype)

    def __float__(self) -> float:
        return float(self.__array__().mean())
