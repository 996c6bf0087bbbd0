"""WeightSwap: other values in a model's tensors for a while, then their own again, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hookpoint.callbacks._shared.sharded_tensors import local_shard
from hookpoint.core.errors import BadLoop


class WeightSwap:
    """Put values into tensors, and put back what was there, on the device and without waiting for it.

    The tensors stay the objects they are: optimizers hold them. What was there is copied before anything is written, and is
    kept until all of it is back: an interrupt in the middle of either leaves nothing half done for good. Autograd does not see
    the writes, so that a gradient that is under way is computed from the values that are back by then.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Any, int]] = []

    @property
    def is_in(self) -> bool:
        """Whether the other values are in."""
        return bool(self._kept)

    def put_in(self, tensors: Sequence[Any], values: Sequence[Any]) -> None:
        """Write the values into the tensors, cast to their types."""
        import torch

        if self._kept:
            raise BadLoop("other values are in these tensors already")
        with torch.inference_mode(False), torch.no_grad():
            self._kept = [(one, one.detach().clone(), version_of(one)) for one in tensors]
            write(tensors, values)

    def put_back(self) -> None:
        """Write what was there into the tensors again, if the values are in; raise if others were seen to write to weights."""
        import torch

        if not self._kept:
            return
        with torch.inference_mode(False), torch.no_grad():
            write([tensor for tensor, _, _ in self._kept], [own for _, own, _ in self._kept])
        kept, self._kept = self._kept, []
        if any(version_of(tensor) != version for tensor, _, version in kept if isinstance(tensor, torch.nn.Parameter)):
            raise changed()


def changed() -> BadLoop:
    """Return the error of a step, or another change, that was made while other values were in the tensors."""
    return BadLoop(
        "the weights were changed while averaged ones were in the model, in a validation or prediction that is still open.",
        lost="the change: the weights of before are put back",
        end="the pass before training goes on, by a break, and keep no name for run.batches(...)",
    )


def write(tensors: Sequence[Any], values: Sequence[Any]) -> None:
    """Copy values into tensors, past autograd."""
    import torch

    if tensors:
        torch._foreach_copy_(
            [local_shard(tensor.detach()).data for tensor in tensors], [local_shard(value) for value in values]
        )


def version_of(tensor: Any) -> int:
    """Return how often a tensor was written to, as far as autograd has seen it."""
    tensor = local_shard(tensor)
    return 0 if tensor.is_inference() else int(tensor._version)
