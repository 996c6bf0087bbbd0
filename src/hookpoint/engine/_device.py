"""The device of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookpoint.core.errors import BadArgument
from hookpoint.engine.module_modes import modules_of


def choose_device(model: Any, wanted: str | torch.device) -> torch.device:
    """Return the device of a run. "auto" is the device of the model if that is not the CPU, or else the GPU if there is one.

    A model on multiple devices stays there, and its first device gets the data.
    """
    if wanted != "auto":
        device = torch.device(wanted)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BadArgument(f"device={str(wanted)!r}: no CUDA device is available.", use='device="auto" or device="cpu"')
        return device
    for module in modules_of(model):
        for parameter in module.parameters():
            if parameter.device.type != "cpu":
                return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def place_model(model: Any, device: torch.device) -> None:
    """Move the model to the device, unless it is on multiple devices."""
    for module in modules_of(model):
        if len({parameter.device for parameter in module.parameters()}) <= 1:
            module.to(device)


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Refuse an optimizer that has none of the model's parameters."""
    if isinstance(optimizer, Mapping):
        for one in optimizer.values():
            check_optimizer(model, one)
        return
    groups = getattr(optimizer, "param_groups", None)
    if not groups:
        return
    own = {id(parameter) for module in modules_of(model) for parameter in module.parameters()}
    if own and not any(id(parameter) in own for group in groups for parameter in group["params"]):
        raise BadArgument(
            "the optimizer has none of the model's parameters.",
            write="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        )
