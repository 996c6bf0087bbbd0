"""TensorStats: statistics of tensors, computed on the tensors' device without synchronizing with it."""

from __future__ import annotations

from typing import Any

from hookpoint.callbacks._shared.numerics import largest
from hookpoint.callbacks._shared.sharded_tensors import local_shard
from hookpoint.core.fields import field_values

STATS = ("mean", "std", "zeros", "max")


class TensorStats:
    """Compute the mean, standard deviation, fraction of zeros and largest magnitude over multiple tensors.

    >>> import torch
    >>> stats = TensorStats()
    >>> for numbers in ([0.0, 2.0], [0.0, -6.0, 4.0, 0.0]):
    ...     stats.add(torch.tensor(numbers))
    >>> {name: round(float(value), 3) for name, value in stats.values().items()}
    {'mean': 0.0, 'std': 3.055, 'zeros': 0.5, 'max': 6.0}
    """

    def __init__(self) -> None:
        self._measured: list[tuple[Any, ...]] = []  # for each tensor: size, mean, variance, number of zeros, largest magnitude

    def add(self, tensor: Any) -> None:
        """Add the current values of a tensor to the statistics. Integer tensors and empty tensors are ignored."""
        import torch

        tensor = local_shard(tensor.detach())
        if not tensor.is_floating_point() or not tensor.numel():
            return
        with torch.no_grad():
            variance, mean = torch.var_mean(tensor.float() if tensor.element_size() < 4 else tensor, correction=0)
            zeros = tensor.numel() - torch.count_nonzero(tensor)
            self._measured.append((tensor.numel(), mean, variance, zeros, largest([tensor])))

    def values(self) -> dict[str, Any]:
        """Return a dict of the statistics over all added tensors. Each value is a tensor. Without added tensors, return {}."""
        import torch

        if not self._measured:
            return {}
        sizes, means, variances, zeros, maxima = zip(*self._measured, strict=True)
        size = sum(sizes)
        if len(sizes) == 1:
            mean, variance, highest = means[0], variances[0], maxima[0]
        else:
            weights = [count / size for count in sizes]
            mean = sum(value * weight for value, weight in zip(means, weights, strict=True))
            squares = [value + (center - mean) ** 2 for value, center in zip(variances, means, strict=True)]
            variance = sum(value * weight for value, weight in zip(squares, weights, strict=True))
            highest = torch.stack(maxima).amax()
        return {"mean": mean, "std": variance**0.5, "zeros": sum(zeros) / size, "max": highest}


def first_tensor(output: Any) -> Any:
    """Return the first tensor in a module's output, at any depth, or None.

    >>> first_tensor(3) is None
    True
    """
    if hasattr(output, "detach"):
        return output
    return next((tensor for field in field_values(output) if (tensor := first_tensor(field)) is not None), None)
