"""LearningRates: an optimizer's learning rates as device tensors, which a captured step reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

# For these optimizers, the results of the fused kernels are bitwise identical whether the learning rate is a float or a float32
# tensor, unless parameters are float64.
SAME_BITS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


class Settings(NamedTuple):
    """The optimizer settings that are constants in a captured step. If one of them changes, the step must be captured again."""

    rates: list[Any]
    others: list[Any]


class LearningRates:
    """Provide an optimizer's learning rates to a captured step.

    The parameter groups keep their rates as floats, so schedulers, `run.hyper`, logs and checkpoints never see a tensor. During
    a capture, the rates of the fused optimizers in SAME_BITS are replaced with tensors. The results of these optimizers are
    bitwise identical with floats and with tensors. Other optimizers round differently with tensors, so their rates are captured
    as constants, like all other settings.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._optimizer = optimizer
        self._device = device
        self._rates: list[float] = []
        self._tensors: list[torch.Tensor] = []

    def settings(self) -> Settings:
        """Return the settings that are constants in a captured step: all except the learning rates that are tensors."""
        rates: list[Any] = []
        others: list[Any] = []
        for group in self._optimizer.param_groups:
            if not self._takes_tensor(group):
                rates.append(id(group["lr"]) if isinstance(group["lr"], torch.Tensor) else group["lr"])
            others.append(len(group["params"]))
            for name, value in group.items():
                if name not in ("params", "lr"):
                    others.append(id(value) if isinstance(value, torch.Tensor) else value)
        return Settings(rates, others)

    def update(self) -> None:
        """Copy changed learning rates to the device without synchronizing."""
        free = [group for group in self._optimizer.param_groups if self._takes_tensor(group)]
        for number, group in enumerate(free):
            if group["lr"] != self._rates[number]:
                self._rates[number] = group["lr"]
                self._tensors[number].fill_(group["lr"])

    @contextmanager
    def as_tensors(self) -> Iterator[None]:
        """For a capture, make the learning rates in the parameter groups tensors until the `with` block ends."""
        free = [group for group in self._optimizer.param_groups if self._takes_tensor(group)]
        rates = [group["lr"] for group in free]
        if len(self._tensors) != len(free):
            self._rates = list(map(float, rates))
            self._tensors = [torch.full((), rate, dtype=torch.float32, device=self._device) for rate in self._rates]
        for group, tensor in zip(free, self._tensors, strict=True):
            group["lr"] = tensor
        try:
            yield
        finally:
            for group, rate in zip(free, rates, strict=True):
                group["lr"] = rate

    def _takes_tensor(self, group: dict[str, Any]) -> bool:
        is_known = type(self._optimizer) in SAME_BITS and bool(group.get("fused")) and not isinstance(group["lr"], torch.Tensor)
        return is_known and all(parameter.dtype != torch.float64 for parameter in group["params"])
