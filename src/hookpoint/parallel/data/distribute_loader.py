"""Shard the samples of a DataLoader over all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from hookpoint.core.logger import logger
from hookpoint.core.team.team import Team
from hookpoint.parallel.data.sampler import TeamBatchSampler


def is_plain(loader: Any) -> bool:
    """Return whether a loader uses only torch's default samplers."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    sampler, batches = loader.sampler, loader.batch_sampler
    if type(sampler) is RandomSampler:
        is_plain = not sampler.replacement and sampler._num_samples is None
    else:
        is_plain = type(sampler) is SequentialSampler
    is_batched = loader.batch_size is not None and type(batches) is BatchSampler and batches.sampler is sampler
    return is_plain and is_batched and sampler.data_source is loader.dataset  # type: ignore[attr-defined]


def distribute_loader(loader: Any, team: Team, seed: int, from_chief: Callable[[Any], Any], *, trains: bool) -> Any:
    """Return a loader for this rank's shard of the samples. A loader with a custom sampler is returned unchanged.

    `from_chief` broadcasts the random numbers that the chief draws. Validation data with fewer samples than ranks is not
    sharded.
    """
    if not is_plain(loader):
        if trains and team.rank == 0 and not _knows_ranks(loader):
            logger.warning(
                "%s is not sharded: every rank trains on all batches; "
                "use a DataLoader without a sampler, or with a DistributedSampler",
                type(loader).__name__,
            )
        return loader
    if not trains and len(loader.dataset) < team.data_size:
        return loader
    batches = loader.batch_sampler
    sampler = TeamBatchSampler(
        len(loader.dataset),
        batches.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        seed=seed,
        rank=team.data_rank,
        size=team.data_size,
        drop_last=batches.drop_last,
        generator=getattr(loader.sampler, "generator", None),
        from_chief=from_chief,
    )
    return loader_with(loader, batch_sampler=sampler)


def loader_with(loader: Any, **attributes: Any) -> Any:
    """Return a copy of a loader with changed attributes, because DataLoader does not allow setting them on the original."""
    twin = copy.copy(loader)
    twin.__dict__.update(attributes, _iterator=None)
    return twin


def team_sampler_of(loader: Any) -> TeamBatchSampler | None:
    """Return a loader's TeamBatchSampler, or None if it has none."""
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, TeamBatchSampler) else None


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch on samplers that need it, such as a DistributedSampler."""
    for sampler in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        if sampler is not None and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def _knows_ranks(loader: Any) -> bool:
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    return any(hasattr(sampler, "num_replicas") or hasattr(sampler, "set_epoch") for sampler in samplers)
