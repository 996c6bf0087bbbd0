"""Run identity: what must, or should, be unchanged when a run resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from hookpoint.core.checkpoint.stateful import has_state, named_parameters, state_of
from hookpoint.engine.module_modes import unwrapped
from hookpoint.parallel.strategy.strategy import LocalUpdates, Pipelined
from hookpoint.parallel.team.world import world_size
from hookpoint.storage.checkpoint.fingerprint import Fingerprint
from hookpoint.storage.workdir.identity import collect


def identity_of(model: Any, optimizer: Any, *, seed: int | None = None, strategy: Any = None, **facts: Any) -> dict[str, Any]:
    """Return the facts that must, or should, be unchanged when a run resumes."""
    is_split = world_size() > 1 and isinstance(strategy, Pipelined)
    if world_size() > 1:  # a single process resumes from the shared state
        facts["copies"] = type(strategy).__name__ if isinstance(strategy, LocalUpdates) else "alike"
    if not isinstance(strategy, Pipelined) and (parameters := _parameters(unwrapped(model), optimizer)):
        facts["optimizer_parameters"] = parameters
    cuda = torch.cuda.is_available()
    return collect(
        world_size=world_size(),
        seed=seed,
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        model=_fingerprint(strategy.full_model(model) if is_split else unwrapped(model)),
        layout=strategy.layout(model) if is_split else "whole",
        optimizer=_kind(optimizer),
        **facts,
    )


def _fingerprint(model: Any) -> str | None:
    return Fingerprint.of(state_of(model)) if has_state(model) else None


def _parameters(model: Any, optimizer: Any) -> str | None:
    """Return the number of parameters of the optimizers, and a digest of their names and shapes in order."""
    names = {id(parameter): name.replace("_orig_mod.", "") for name, parameter in named_parameters(model)}
    optimizers = optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]
    groups = [group["params"] for one in optimizers if isinstance(one, torch.optim.Optimizer) for group in one.param_groups]
    lines = [" ".join(f"{names.get(id(one), '')}{tuple(one.shape)}" for one in group) for group in groups]
    if not lines:
        return None
    count = sum(map(len, groups))
    return f"{count} in {len(groups)} group{'s' * (len(groups) > 1)} ({hashlib.sha256(repr(lines).encode()).hexdigest()[:8]})"


def _kind(optimizer: Any) -> str | None:
    if isinstance(optimizer, Mapping):
        return ", ".join(f"{key}: {type(one).__name__}" for key, one in optimizer.items())
    return None if optimizer is None else type(optimizer).__name__
