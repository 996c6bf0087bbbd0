"""How large gradients and updates are, computed on their device without waiting for it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hookpoint.callbacks._shared.numerics import largest
from hookpoint.callbacks._shared.sharded_tensors import all_gather, is_replicated, is_sharded, local_shard

LEAST_NORM = 1e-12  # of weights, so that those that are all 0 have a ratio, too


def dense(tensor: Any) -> Any:
    """Return the numbers of a tensor, of a sparse one its values; a sharded one stays so."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def sizes(gradients: Iterable[Any]) -> dict[str, Any]:
    """Return the norm of all gradients together, the largest magnitude, and the share that is NaN or infinite.

    Where they are sharded, these are those of the whole ones, and all processes call this.

    >>> import torch
    >>> sizes([torch.tensor([3.0, 0.0]), torch.tensor([-4.0, 0.0])])
    {'norm': tensor(5.), 'max': tensor(4.), 'nonfinite': tensor(0.)}
    """
    import torch

    several = [one for one in gradients if one.numel()]
    if not several:
        return {}
    if any(map(is_sharded, several)):
        return _sizes_together(several)
    with torch.no_grad():
        bad = [one.numel() - torch.isfinite(one).sum() for one in several]
        share = torch.stack([one.to(bad[0].device, non_blocking=True) for one in bad]).sum() / sum(map(torch.numel, several))
        return {"norm": torch.nn.utils.get_total_norm(several), "max": largest(several), "nonfinite": share}


def update_ratio(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return the norm of the change from old to new weights, in ratio to the norm of the old ones."""
    import torch

    with torch.no_grad():
        several = list(pairs)
        if any(is_sharded(new) for _, new in several):
            return _ratio_together(several)
        change, size = update_norms(several)
        return change / size.clamp_min(LEAST_NORM)


def update_norms(pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the norm of the change from old to new weights, and the norm of the old ones."""
    import torch

    with torch.no_grad():
        change = torch.nn.utils.get_total_norm([new - old for old, new in pairs])
        return change, torch.nn.utils.get_total_norm([old for old, _ in pairs])


def joined_sizes(said: list[list[float]]) -> dict[str, float]:
    """Return the sizes of gradients that lie on several processes: of each its own sizes, if any, and how many numbers.

    >>> joined_sizes([[3.0, 2.0, 0.0, 10], [4.0, 3.0, 0.5, 10], [0]])
    {'norm': 5.0, 'max': 3.0, 'nonfinite': 0.25}
    """
    known = [one for one in said if len(one) > 1]
    if not known:
        return {}
    largest_ones = [most for _, most, _, _ in known]
    return {
        "norm": math.hypot(*(norm for norm, _, _, _ in known)),
        "max": next((most for most in largest_ones if math.isnan(most)), max(largest_ones)),
        "nonfinite": sum(share * count for _, _, share, count in known) / sum(count for _, _, _, count in known),
    }


def joined_ratio(said: list[list[float]]) -> float:
    """Return the ratio of a change to weights, of which each process says the norms of its own."""
    change, size = (math.hypot(*norms) for norms in zip(*said, strict=True))
    return change / max(size, LEAST_NORM)


def _sizes_together(several: list[Any]) -> dict[str, Any]:
    import torch

    with torch.no_grad():
        rows = _of_each(several, [_sizes_here([local_shard(one) for one in group]) for group in _kinds(several)])
        norms, largest_ones, bad_ones = rows.unbind(dim=1)
        share = bad_ones.sum() / sum(map(torch.numel, several))
        return {"norm": torch.linalg.vector_norm(norms), "max": largest_ones.max(), "nonfinite": share}


def _ratio_together(several: list[tuple[Any, Any]]) -> Any:
    import torch

    old_ones, new_ones = zip(*several, strict=True)
    pairs = [zip(*group, strict=True) for group in zip(_kinds(old_ones), _kinds(new_ones), strict=True)]
    own = [_changes_here([(local_shard(old), local_shard(new)) for old, new in group]) for group in pairs]
    changes, norms = _of_each(new_ones, own).unbind(dim=1)
    return torch.linalg.vector_norm(changes) / torch.linalg.vector_norm(norms).clamp_min(LEAST_NORM)


def _kinds(tensors: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return those of which processes have different numbers, and those that each of them has."""
    several = list(tensors)
    return [one for one in several if not is_replicated(one)], [one for one in several if is_replicated(one)]


def _of_each(tensors: Iterable[Any], values: list[Any]) -> Any:
    """Return a row of values for what each process has alone, and one for what all of them have: that counts once."""
    import torch

    like = next(one for one in tensors if is_sharded(one))
    alone, common = (one.to(like.device) for one in values)
    return torch.cat([all_gather(alone, like), common[None]])


def _sizes_here(parts: list[Any]) -> Any:
    import torch

    if not parts:
        return torch.zeros(3)
    bad = torch.stack([part.numel() - torch.isfinite(part).sum() for part in parts]).sum()
    return torch.stack([torch.nn.utils.get_total_norm(parts), torch.stack([_largest(part) for part in parts]).max(), bad])


def _changes_here(pairs: list[tuple[Any, Any]]) -> Any:
    import torch

    if not pairs:
        return torch.zeros(2)
    return torch.stack(
        [
            torch.nn.utils.get_total_norm([new - old for old, new in pairs]),
            torch.nn.utils.get_total_norm([old for old, _ in pairs]),
        ]
    )


def _largest(part: Any) -> Any:
    return part.abs().max() if part.numel() else part.new_zeros(())  # a process may have none of a small one
