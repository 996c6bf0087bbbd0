"""How large gradients and updates are, computed on their device without waiting for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookpoint.callbacks.numerics import largest

LEAST_NORM = 1e-12  # of weights, so that those that are all 0 have a ratio, too


def local(tensor: Any) -> Any:
    """Return the numbers of a tensor that are here: of a sharded one this rank's part, of a sparse one its values."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def sizes(gradients: Iterable[Any]) -> dict[str, Any]:
    """Return the norm of all gradients together, the largest magnitude, and the share that is NaN or infinite.

    >>> import torch
    >>> sizes([torch.tensor([3.0, 0.0]), torch.tensor([-4.0, 0.0])])
    {'norm': tensor(5.), 'max': tensor(4.), 'nonfinite': tensor(0.)}
    """
    import torch

    several = [one for one in gradients if one.numel()]
    if not several:
        return {}
    with torch.no_grad():
        bad = [one.numel() - torch.isfinite(one).sum() for one in several]
        share = torch.stack([one.to(bad[0].device, non_blocking=True) for one in bad]).sum() / sum(map(torch.numel, several))
        return {"norm": torch.nn.utils.get_total_norm(several), "max": largest(several), "nonfinite": share}


def update_ratio(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Return the norm of the change from old to new weights, in ratio to the norm of the old ones."""
    import torch

    with torch.no_grad():
        several = list(pairs)
        change = torch.nn.utils.get_total_norm([new - old for old, new in several])
        return change / torch.nn.utils.get_total_norm([old for old, _ in several]).clamp_min(LEAST_NORM)
