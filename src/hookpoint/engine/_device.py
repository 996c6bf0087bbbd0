"""Which device a run is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hookpoint.core.errors import BadArgument
from hookpoint.engine.module_modes import modules_of


def choose_device(model: Any, wanted: str | torch.device) -> torch.device:
    """Return the device to run on: the one that is wanted, or for "auto" the model's own, or the accelerator if there is one.

    A model whose parameters are spread over several devices stays where it is, and its first device gets the data.
    """
    if wanted != "auto":
        device = torch.device(wanted)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BadArgument(f"device={str(wanted)!r}: there is no CUDA device here.", use='device="auto" or device="cpu"')
        return device
    for module in modules_of(model):
        for parameter in module.parameters():
            if parameter.device.type != "cpu":
                return parameter.device
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def place_model(model: Any, device: torch.device) -> None:
    """Move the model to the device, unless someone has spread it over several."""
    for module in modules_of(model):
        found = {parameter.device for parameter in module.parameters()}
        if len(found) <= 1:
            module.to(device)


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Refuse an optimizer that has none of the model's parameters: it would train something else."""
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
            "the optimizer has none of the model's parameters; it would train something else.",
            make="it from this model: torch.optim.SGD(model.parameters(), lr=0.1)",
        )
