"""TensorStats: what is logged of the numbers in tensors, computed on their device without waiting for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hookpoint.callbacks._shared.numerics import largest
from hookpoint.core.fields import field_values

STATS = ("mean", "std", "zeros", "max")


@dataclass(frozen=True, slots=True)
class Measured:
    """One tensor: how many numbers it has, their mean and variance, how many are 0, and the largest magnitude."""

    count: int
    mean: Any
    variance: Any
    zeros: Any
    max: Any


class TensorStats:
    """Mean, standard deviation, share of zeros and largest magnitude of all numbers in some tensors.

    >>> import torch
    >>> stats = TensorStats()
    >>> for numbers in ([0.0, 2.0], [0.0, -6.0, 4.0, 0.0]):
    ...     stats.add(torch.tensor(numbers))
    >>> {name: round(float(value), 3) for name, value in stats.values().items()}
    {'mean': 0.0, 'std': 3.055, 'zeros': 0.5, 'max': 6.0}
    """

    def __init__(self) -> None:
        self._parts: list[Measured] = []

    def add(self, tensor: Any) -> None:
        """Measure a tensor as it is now. One without numbers, or of integers, does not count."""
        import torch

        tensor = tensor.detach()
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if not tensor.is_floating_point() or not tensor.numel():
            return
        with torch.no_grad():
            wide = tensor.float() if tensor.element_size() < 4 else tensor
            variance, mean = torch.var_mean(wide, correction=0)
            zeros = tensor.numel() - torch.count_nonzero(tensor)
            self._parts.append(Measured(tensor.numel(), mean, variance, zeros, largest([tensor])))

    def values(self) -> dict[str, Any]:
        """Return the stats of all tensors together, by name, as tensors; nothing where none was measured."""
        import torch

        parts = self._parts
        if not parts:
            return {}
        count = sum(part.count for part in parts)
        if len(parts) == 1:
            mean, variance, highest = parts[0].mean, parts[0].variance, parts[0].max
        else:
            mean = sum(part.mean * (part.count / count) for part in parts)
            spread = (part.variance + (part.mean - mean) ** 2 for part in parts)
            variance = sum(one * (part.count / count) for one, part in zip(spread, parts, strict=True))
            highest = torch.stack([part.max for part in parts]).amax()
        zeros = sum(part.zeros for part in parts) / count
        return {"mean": mean, "std": variance**0.5, "zeros": zeros, "max": highest}


def first_tensor(output: Any) -> Any:
    """Return the first tensor in what a module returned: itself, or at any depth in its parts; None where there is none.

    >>> first_tensor(3) is None
    True
    """
    if hasattr(output, "detach"):
        return output
    return next((found for one in field_values(output) if (found := first_tensor(one)) is not None), None)
