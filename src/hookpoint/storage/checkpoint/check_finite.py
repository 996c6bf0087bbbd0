"""Reject a state that contains NaN or infinity before it is saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hookpoint.core.errors import NotFinite
from hookpoint.core.text.terminal import few
from hookpoint.storage.checkpoint.tree import named_tensors

MAX_NAMED = 3


def refuse_if_not_finite(parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None:
    """Raise NotFinite if a tensor that must be finite contains NaN or infinity.

    `finite` maps each part of the state to the names of the tensors that must be finite, or to None for all of its tensors. A
    tensor inside lists and mappings has a dotted name, such as `critic.weight` or `state.0.exp_avg`. Unknown names are ignored.
    """
    for part, names in finite.items():
        wanted = None if names is None else set(names)
        tensors = named_tensors(parts.get(part))
        bad = not_finite((name, tensor) for name, tensor in tensors if wanted is None or name in wanted)
        if bad:
            raise NotFinite(
                f"{few(bad, MAX_NAMED)} of the {part} contain{'' if bad[1:] else 's'} NaN or infinity.",
                resume="from the last good checkpoint, with a lower learning rate or clipped gradients",
            )


def not_finite(named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return the names of the tensors that contain NaN or infinity. Each device is synchronized once.

    Only the local shard of a sharded tensor is checked. An uninitialized parameter of a lazy module counts as finite.
    """
    with torch.no_grad():
        tensors = [(name, _local(tensor)) for name, tensor in named if _is_checked(tensor)]
        # Summing is the fastest test. If a sum is not finite, the tensor may contain NaN or infinity, or its sum overflows.
        sums = _are_finite([tensor.sum() for _, tensor in tensors])
        return [name for (name, tensor), ok in zip(tensors, sums, strict=True) if not (ok or tensor.isfinite().all())]


def _is_checked(tensor: torch.Tensor) -> bool:
    is_initialized = not (torch.nn.parameter.is_lazy(tensor) or tensor.is_meta)
    return is_initialized and (tensor.is_floating_point() or tensor.is_complex())


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.float() if local.element_size() == 1 else local  # 8-bit floats do not support arithmetic


def _are_finite(numbers: list[torch.Tensor]) -> list[bool]:
    """Return True for each number that is finite, and False otherwise. Results are copied to the host once per device."""
    flags: dict[int, bool] = {}
    for device in {number.device for number in numbers}:
        indices = [index for index, number in enumerate(numbers) if number.device == device]
        flags |= zip(indices, torch.stack([numbers[index].isfinite() for index in indices]).tolist(), strict=True)
    return [flags[index] for index in range(len(numbers))]
