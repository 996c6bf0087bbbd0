"""Keeping: what a loop with torch in it needs for checkpoints."""

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
        "loader_workers": TorchLoaderWorkers(),
    }
    if workdir is not None:
        # A run without a workdir does without all of this.
        from hookpoint.engine._run_identity import identity_of
        from hookpoint.parallel.checkpoint.team_store import TeamStore
        from hookpoint.storage.checkpoint_store import CheckpointStore

        store = CheckpointStore(workdir, allow_world_change=allow_world_change)
        options["store"] = (
            TeamStore(store, strategy if isinstance(strategy, PerRankModel) else None) if world_size() > 1 else store
        )
        model_size = getattr(strategy, "model_size", 1)
        if allow_world_change and model_size > 1:
            cure = "allow_world_change=True; with weights alone, init_weights=hookpoint.load_weights(...), any number can go on"
            raise BadStrategy(f"{type(strategy).__name__} goes on with as many processes as it had.", drop=cure)
        known = {"strategy": strategy, "model_size": model_size, **facts}
        options["identity"] = partial(identity_of, model, optimizer, seed=seed, **known)
    return options


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
