"""Keeping: what a loop with torch in it needs for checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from hookpoint.core.checkpoint.plain_names import COMPILED
from hookpoint.core.checkpoint.stateful import has_state, named_parameters, state_of
from hookpoint.core.errors import BadLoop, text
from hookpoint.core.run.run import Run
from hookpoint.engine.data.data_position import TorchPositions
from hookpoint.engine.data.torch_randomness import TorchRandomness
from hookpoint.parallel.checkpoint.team_store import TeamStore
from hookpoint.parallel.strategy.strategy import Apart, Loose, Staged
from hookpoint.parallel.team.world import world_size
from hookpoint.storage.checkpoint.fingerprint import Fingerprint
from hookpoint.storage.checkpoint_store import CheckpointStore
from hookpoint.storage.workdir.identity import collect


def kept_in(
    workdir: Any,
    model: Any,
    optimizer: Any,
    *,
    seed: int | None = None,
    allow_world_change: bool = False,
    strategy: Any = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return the options that let a loop keep its checkpoints in this workdir, and find back into torch's data and numbers."""
    options: dict[str, Any] = {
        "randomness": TorchRandomness(),
        "positions": TorchPositions,
        "after_load": tell_schedulers,
        "may_wait": waits_allowed,
        "unwrapped": unwrapped,
    }
    if workdir is not None:
        store = CheckpointStore(workdir, allow_world_change=allow_world_change)
        options["store"] = _of_team(store, strategy) if world_size() > 1 else store
        model_size = getattr(strategy, "model_size", 1)
        if allow_world_change and model_size > 1:
            cure = "allow_world_change=True; with weights alone, init_weights=hookpoint.load_weights(...), any number can go on"
            raise BadLoop(text(f"{type(strategy).__name__} goes on with as many processes as it had.", drop=cure))
        known = {"strategy": strategy, "model_size": model_size, **facts}
        options["identity"] = partial(identity_of, model, optimizer, seed=seed, **known)
    return options


def _of_team(store: CheckpointStore, strategy: Any) -> TeamStore:
    return TeamStore(store, strategy if isinstance(strategy, Apart) else None)


def unwrapped(model: Any) -> Any:
    """Return the model inside a user's DistributedDataParallel, compiled or not: a checkpoint has the names of its weights."""
    inside = getattr(model, COMPILED, model)
    return unwrapped(inside.module) if isinstance(inside, DistributedDataParallel) else model


@contextmanager
def waits_allowed() -> Iterator[None]:
    """Let the device be waited for inside of the block, also where that is an error otherwise."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    if mode:
        torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


def tell_schedulers(run: Run) -> None:
    """Let schedulers know that their optimizer has stepped: in a process of before, or they would warn that it has not."""
    for optimizer in run.optimizers:
        if isinstance(optimizer, torch.optim.Optimizer) and run.step:
            optimizer._opt_called = True  # type: ignore[attr-defined]


def identity_of(model: Any, optimizer: Any, *, seed: int | None = None, strategy: Any = None, **facts: Any) -> dict[str, Any]:
    """Return what must be, or should be, the same when a run goes on."""
    is_cut = world_size() > 1 and isinstance(strategy, Staged)
    if world_size() > 1:  # one process alone goes on from what they have in common
        facts["copies"] = type(strategy).__name__ if isinstance(strategy, Loose) else "alike"
    if not isinstance(strategy, Staged) and (parameters := _parameters(unwrapped(model), optimizer)):
        facts["optimizer_parameters"] = parameters
    cuda = torch.cuda.is_available()
    return collect(
        world_size=world_size(),
        seed=seed,
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        model=_fingerprint(strategy.whole_model(model) if is_cut else unwrapped(model)),
        layout=strategy.layout(model) if is_cut else "whole",
        optimizer=_kind(optimizer),
        **facts,
    )


def _fingerprint(model: Any) -> str | None:
    return Fingerprint.of(state_of(model)) if has_state(model) else None


def _parameters(model: Any, optimizer: Any) -> str | None:
    """Return how many parameters the optimizers have, and a digest of their names and shapes in the order of their state."""
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
