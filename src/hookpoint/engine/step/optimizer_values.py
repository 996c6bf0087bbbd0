"""Optimizer values: the gradients of an optimizer's parameters, and its learning rate."""

from __future__ import annotations

from typing import Any

import torch


def clear_gradients(optimizer: Any) -> None:
    """Set the gradients of an optimizer's parameters to None. `zero_grad` does the same but takes 20 microseconds longer."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def learning_rate(optimizer: Any) -> dict[str, Any]:
    """Return {"learning_rate": ...} for the optimizer's first parameter group, or {} if the optimizer has no learning rate.

    If the learning rate is a tensor, the result is a copy, because the optimizer's tensor changes in place. The copy is
    converted to a float later, without a device synchronization.
    """
    groups = getattr(optimizer, "param_groups", None) or []
    rate = groups[0].get("lr") if groups else None
    return {} if rate is None else {"learning_rate": rate.clone() if isinstance(rate, torch.Tensor) else rate}
