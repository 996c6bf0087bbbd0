"""Checkpoint options: what a loop with torch needs to save and resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from hookpoint.core.errors import BadStrategy
from hookpoint.core.run.run import Run
from hookpoint.engine.data.data_position import TorchPositions
from hookpoint.engine.data.torch_loader_workers import TorchLoaderWorkers
from hookpoint.engine.data.torch_randomness import TorchRandomness
from hookpoint.engine.module_modes import unwrapped
from hookpoint.parallel.strategy.strategy import PerRankModel
from hookpoint.parallel.team.world import world_size


def checkpoint_options(
    workdir: Any,
    model: Any,
    optimizer: Any,
    *,
    seed: int | None = None,
    allow_world_change: bool = False,
    strategy: Any = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return the options of a loop that saves to this workdir and restores torch's data position and random generators."""
    options: dict[str, Any] = {
        "randomness": TorchRandomness(),
        "positions": TorchPositions,
        "after_load": mark_optimizers_stepped,
        "may_wait": waits_allowed,
        "unwrapped": unwrapped,
        "loader_workers": TorchLoaderWorkers(),
    }
    if workdir is not None:
        # Imported only here: a run without a workdir does not need them.
        from hookpoint.engine._run_identity import identity_of
        from hookpoint.parallel.checkpoint.team_store import TeamStore
        from hookpoint.storage.checkpoint_store import CheckpointStore

        store = CheckpointStore(workdir, allow_world_change=allow_world_change)
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
    """Mark optimizers as stepped after a resume. Otherwise schedulers warn that they have not."""
    for optimizer in run.optimizers:
        if isinstance(optimizer, torch.optim.Optimizer) and run.step:
            optimizer._opt_called = True  # type: ignore[attr-defined]
