"""Measure gradients and weight updates on their device, without waiting for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hookpoint.callbacks._shared.numerics import largest
from hookpoint.callbacks._shared.sharded_tensors import all_gather, is_replicated, is_sharded, local_shard

MIN_NORM = 1e-12  # avoids division by zero if all weights are 0


def dense(tensor: Any) -> Any:
    """Detach a tensor. For a sparse tensor, return only its values. A sharded tensor stays sharded."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def sizes(gradients: Iterable[Any]) -> dict[str, Any]:
    """Return the total norm of the gradients, the largest magnitude, and the fraction of values that are NaN or infinite.

    If gradients are sharded, this is a collective call, and the result covers all shards.

    >>> import torch
    >>> sizes([torch.tensor([3.0, 0.0]), torch.tensor([-4.0, 0.0])])
    {'norm': tensor(5.), 'max': tensor(4.), 'nonfinite': tensor(0.)}
    """
    import torch

    tensors = [(gradient,) for gradient in gradients if gradient.numel()]
    if not tensors:
        return {}
    with torch.no_grad():
        if any(is_sharded(tensor) for (tensor,) in tensors):
            norms, maxima, bad = _rows(tensors, _local_sizes).unbind(dim=1)
            norm, highest, nonfinite = torch.linalg.vector_norm(norms), maxima.max(), bad.sum()
        else:
            norm, highest, nonfinite = _local_sizes(tensors)
        return {"norm": norm, "max": highest, "nonfinite": nonfinite / sum(tensor.numel() for (tensor,) in tensors)}


def update_ratio(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return the norm of the weight change, relative to the norm of the old weights."""
    import torch

    pairs = list(pairs)
    with torch.no_grad():
        if any(is_sharded(new) for _, new in pairs):
            change, size = map(torch.linalg.vector_norm, _rows(pairs, update_norms).unbind(dim=1))
        else:
            change, size = update_norms(pairs)
        return change / size.clamp_min(MIN_NORM)


def update_norms(pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the norm of the weight change and the norm of the old weights."""
    import torch

    with torch.no_grad():
        change = torch.nn.utils.get_total_norm([new - old for old, new in pairs])
        return change, torch.nn.utils.get_total_norm([old for old, _ in pairs])


def joined_sizes(ranks: list[list[float]]) -> dict[str, float]:
    """Combine the gradient sizes from ranks with different layers.

    Each rank provides a list: the norm, the maximum, the fraction of nonfinite values, and the number of values. The list of a
    rank without gradients contains only the number of values, which is 0.

    >>> joined_sizes([[3.0, 2.0, 0.0, 10], [4.0, 3.0, 0.5, 10], [0]])
    {'norm': 5.0, 'max': 3.0, 'nonfinite': 0.25}
    """
    known = [sizes for sizes in ranks if len(sizes) > 1]
    if not known:
        return {}
    norms, maxima, fractions, counts = zip(*known, strict=True)
    return {
        "norm": math.hypot(*norms),
        "max": next(filter(math.isnan, maxima), max(maxima)),
        "nonfinite": sum(fraction * count for fraction, count in zip(fractions, counts, strict=True)) / sum(counts),
    }


def joined_ratio(ranks: list[list[float]]) -> float:
    """Return the update ratio of a model whose layers are on different ranks.

    Each rank provides a list: the norm of its weight change, and the norm of its old weights.
    """
    change, size = (math.hypot(*norms) for norms in zip(*ranks, strict=True))
    return change / max(size, MIN_NORM)


def _local_sizes(tensors: Sequence[tuple[Any]]) -> tuple[Any, Any, Any]:
    """Return the norm, the largest magnitude and the number of nonfinite values of local tensors."""
    import torch

    shards = [shard for (shard,) in tensors if shard.numel()]  # a rank may have an empty shard of a small tensor
    if not shards:
        return torch.zeros(()), torch.zeros(()), torch.zeros(())
    bad = [shard.numel() - torch.isfinite(shard).sum() for shard in shards]
    total = torch.stack([count.to(bad[0].device, non_blocking=True) for count in bad]).sum()
    return torch.nn.utils.get_total_norm(shards), largest(shards), total


def _rows(tensors: Sequence[tuple[Any, ...]], measure: Callable[..., tuple[Any, ...]]) -> Any:
    """Return a table of measurements. Each rank's shards have one row, and all replicated tensors together have one row."""
    import torch

    like = next(item[-1] for item in tensors if is_sharded(item[-1]))
    groups = ([item for item in tensors if is_replicated(item[-1]) is replicated] for replicated in (False, True))
    own, common = (
        torch.stack([value.float().to(like.device) for value in measure([tuple(map(local_shard, item)) for item in group])])
        for group in groups
    )
    return torch.cat([all_gather(own, like), common[None]])
