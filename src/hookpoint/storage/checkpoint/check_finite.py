"""Refuse to save a state that contains NaN or infinity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from hookpoint.core.errors import NotFinite
from hookpoint.storage.checkpoint.tree import MAPPINGS, SEQUENCES

MOST_NAMED = 3


def refuse_if_not_finite(parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None:
    """Raise NotFinite if a tensor that must be finite contains NaN or infinity.

    `finite` maps each part to the names of these tensors, or to None for all of its tensors. A tensor inside lists and mappings
    has a name with dots: `critic.weight`, `state.0.exp_avg`. Unknown names are ignored.
    """
    for part, names in finite.items():
        wanted = None if names is None else set(names)
        bad = not_finite((name, one) for name, one in _named(parts.get(part)) if wanted is None or name in wanted)
        if bad:
            more = f" and {len(bad) - MOST_NAMED} more" if len(bad) > MOST_NAMED else ""
            raise NotFinite(
                f"{', '.join(bad[:MOST_NAMED])}{more} of the {part} contain{'' if more or bad[1:] else 's'} NaN or infinity.",
                resume="from the last good checkpoint, with a lower learning rate or clipped gradients",
            )


def not_finite(named: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    """Return the names of the tensors that contain NaN or infinity. Each device is synchronized once.

    Of a sharded tensor, the local shard counts. An uninitialized parameter of a lazy module is finite.
    """
    with torch.no_grad():
        found = [(name, _computable(one)) for name, one in named if _counts(one)]
        # A sum is the fastest test. It is not finite if a number is not finite, or if it overflows.
        sums = _are_finite([one.sum() for _, one in found])
        return [name for (name, one), is_good in zip(found, sums, strict=True) if not (is_good or one.isfinite().all())]


def _counts(tensor: torch.Tensor) -> bool:
    is_filled = not (torch.nn.parameter.is_lazy(tensor) or tensor.is_meta)
    return is_filled and (tensor.is_floating_point() or tensor.is_complex())


def _computable(tensor: torch.Tensor) -> torch.Tensor:
    here: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return here.float() if here.element_size() == 1 else here  # 8-bit floats support no arithmetic


def _are_finite(numbers: list[torch.Tensor]) -> list[bool]:
    """Return which of these numbers are finite, with one copy per device."""
    flags: dict[int, bool] = {}
    for device in {one.device for one in numbers}:
        places = [place for place, one in enumerate(numbers) if one.device == device]
        flags |= zip(places, torch.stack([numbers[place].isfinite() for place in places]).tolist(), strict=True)
    return [flags[place] for place in range(len(numbers))]


def _named(value: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield prefix, value
    elif type(value) in MAPPINGS or type(value) in SEQUENCES:
        items = value.items() if type(value) in MAPPINGS else enumerate(value)
        for key, one in items:
            yield from _named(one, f"{prefix}.{key}" if prefix else str(key))
