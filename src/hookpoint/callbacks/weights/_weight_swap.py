"""WeightSwap: replace the values of tensors temporarily, and restore them bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import local_shard
from hookpoint.core.errors import BadLoop


class WeightSwap:
    """Write values into tensors and restore the original values later, on the device and without waiting for it.

    The tensor objects stay the same, because optimizers hold references to them. The original values are copied before anything
    is written, and released once all of them are restored. After an interrupt, all original values can therefore still be
    restored. Autograd does not see the writes: a pending backward pass uses the restored values.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[Any, Any, int]] = []  # tensor, values, version

    @property
    def is_active(self) -> bool:
        """Whether the original values are currently replaced."""
        return bool(self._originals)

    def apply(self, tensors: Sequence[Any], values: Sequence[Any]) -> None:
        """Write the values into the tensors, cast to the tensors' dtypes."""
        import torch

        if self._originals:
            raise BadLoop("these tensors are already swapped")
        with torch.inference_mode(False), torch.no_grad():
            self._originals = [(tensor, tensor.detach().clone(), version_of(tensor)) for tensor in tensors]
            write(tensors, values)

    def restore(self) -> None:
        """Restore the original values, if they are currently replaced. Raise if weights were changed in the meantime."""
        import torch

        if not self._originals:
            return
        with torch.inference_mode(False), torch.no_grad():
            write([tensor for tensor, _, _ in self._originals], [values for _, values, _ in self._originals])
        originals, self._originals = self._originals, []
        if any(version_of(tensor) != version for tensor, _, version in originals if isinstance(tensor, torch.nn.Parameter)):
            raise changed()


def changed() -> BadLoop:
    """Return the error for weights that were changed while they were swapped."""
    return BadLoop(
        "the weights were changed during a validation or prediction pass, while the model had its averaged weights: the change "
        "is lost.",
        end="the pass with a break before training continues, and do not keep a reference to run.batches(...)",
    )


def write(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Copy values into tensors. Autograd does not track the copies."""
    import torch

    if tensors:
        torch._foreach_copy_(
            [local_shard(tensor.detach()).data for tensor in tensors], [local_shard(value) for value in values]
        )


def version_of(tensor: Any) -> int:
    """Return the autograd version of a tensor, which counts the writes to it."""
    tensor = local_shard(tensor)
    return 0 if tensor.is_inference() else int(tensor._version)
