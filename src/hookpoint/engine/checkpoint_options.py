"""Checkpoint options: the options that a loop with torch needs to save and resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hookpoint.core.checkpoint.stateful import has_state, named_parameters, state_of
from hookpoint.core.errors import BadStrategy
from hookpoint.core.run.run import Run
from hookpoint.engine.data.data_position import TorchPositions
from hookpoint.engine.data.rng import TorchRandomness
from hookpoint.engine.data.torch_loader_workers import TorchLoaderWorkers
from hookpoint.engine.step.modules import modules_of, unwrapped
from hookpoint.parallel.strategy.strategy import LocalUpdates, PerRankModel, Pipelined
from hookpoint.parallel.team.world import world_size


def checkpoint_options(
    workdir: Any,
    model: Any,
    optimizer: Any,
    init_weights: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
    allow_world_change: bool = False,
    checkpoint_key: Any = None,
    strategy: Any = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return options for a loop that saves to this workdir.

    When the loop resumes, it restores the position in the data and the random number generators of Python, NumPy and torch.
    """
    options: dict[str, Any] = {
        "randomness": TorchRandomness(),
        "positions": TorchPositions,
        "after_load": mark_optimizers_stepped,
        "may_wait": waits_allowed,
        "unwrapped": unwrapped,
        "loader_workers": TorchLoaderWorkers(),
    }
    key = None
    if checkpoint_key is not None:
        from hookpoint.storage.checkpoint.encryption import key_for_workdir

        key = key_for_workdir(checkpoint_key, workdir)
    if workdir is not None:
        # A run without a workdir does not need these imports.
        from hookpoint.parallel.checkpoint.team_store import TeamStore
        from hookpoint.storage.checkpoint_store import CheckpointStore
        from hookpoint.storage.lineage import lineage_of_init

        if init_weights is not None:
            options["lineage"] = lineage_of_init(init_weights)
        store = CheckpointStore(workdir, allow_world_change=allow_world_change, key=key)
        per_rank = strategy if isinstance(strategy, PerRankModel) else None
        options["store"] = TeamStore(store, per_rank) if world_size() > 1 else store
        model_size = getattr(strategy, "model_size", 1)
        if allow_world_change and model_size > 1:
            cure = "allow_world_change=True; or load only the weights: init_weights=hookpoint.load_weights(...)"
            raise BadStrategy(f"{type(strategy).__name__} resumes only with the same number of ranks.", drop=cure)
        facts = {"strategy": strategy, "model_size": model_size, **facts}
        options["identity"] = partial(identity_of, model, optimizer, seed=seed, **facts)
    return options


@contextmanager
def waits_allowed() -> Iterator[None]:
    """Allow device synchronization inside the block, even with strict_sync."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    if mode:
        torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


def mark_optimizers_stepped(run: Run) -> None:
    """Mark optimizers as stepped after a resume. Otherwise, schedulers warn that they run before the first optimizer step."""
    for optimizer in run.optimizers:
        if isinstance(optimizer, torch.optim.Optimizer) and run.step:
            optimizer._opt_called = True  # type: ignore[attr-defined]


def identity_of(model: Any, optimizer: Any, *, seed: int | None = None, strategy: Any = None, **facts: Any) -> dict[str, Any]:
    """Return the properties of a run that are compared with the checkpoint when the run resumes.

    Some of these properties must not change, and the others should not change.
    """
    from hookpoint.storage.checkpoint.fingerprint import Fingerprint
    from hookpoint.storage.workdir.identity import collect

    is_split = world_size() > 1 and isinstance(strategy, Pipelined)
    full = strategy.full_model(model) if is_split else unwrapped(model)
    # `copies` describes how ranks synchronize their copies of the model. A single process has only one copy, so it does
    # not need this entry. If it resumes a run of several ranks, it loads the state that all ranks share.
    if world_size() > 1:
        facts["copies"] = type(strategy).__name__ if isinstance(strategy, LocalUpdates) else "alike"
    tensors = (tensor for module in modules_of(model) for tensor in (*module.parameters(), *module.buffers()))
    if not any(map(torch.nn.parameter.is_lazy, tensors)):  # shapes of lazy tensors are unknown until the first batch
        facts["model"] = Fingerprint.of(state_of(full)) if has_state(full) else None
        if not isinstance(strategy, Pipelined) and (parameters := _parameters(unwrapped(model), optimizer)):
            facts["optimizer_parameters"] = parameters
    cuda = torch.cuda.is_available()
    return collect(
        world_size=world_size(),
        seed=seed,
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        device=torch.cuda.get_device_name() if cuda else "cpu",
        layout=strategy.layout(model) if is_split else "whole",
        optimizer=_kind(optimizer),
        **facts,
    )


def _parameters(model: Any, optimizer: Any) -> str | None:
    """Return the number of parameters in the optimizers and a digest of the parameters' names and shapes, in order."""
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
