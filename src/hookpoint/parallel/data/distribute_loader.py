"""Spread: a DataLoader's samples over the processes of a team."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from hookpoint.core.team.team import Team
from hookpoint.parallel.data.sampler import TeamBatchSampler

logger = logging.getLogger("hookpoint")


def is_plain(loader: Any) -> bool:
    """Say whether a loader has just the samplers that torch gives it: no order of its owner's."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return False
    sampler, batches = loader.sampler, loader.batch_sampler
    if type(sampler) is RandomSampler:
        is_all = not sampler.replacement and sampler._num_samples is None
    else:
        is_all = type(sampler) is SequentialSampler
    is_ours = loader.batch_size is not None and type(batches) is BatchSampler and batches.sampler is sampler
    return is_all and is_ours and sampler.data_source is loader.dataset  # type: ignore[attr-defined]


def distribute_loader(loader: Any, team: Team, seed: int, share: Callable[[Any], Any], *, trains: bool) -> Any:
    """Return a loader for this process's part of the samples; the loader itself, where its owner has given it a sampler.

    `share` passes on what the chief draws. Validation data with fewer samples than there are processes is for each of them.
    """
    if not is_plain(loader):
        if trains and team.rank == 0 and not _knows_of_others(loader):
            logger.warning(
                "%s has an order of its own: every process trains on what it gives there; a DataLoader without a sampler is"
                " shared, as is one with a DistributedSampler",
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
        share=share,
    )
    twin = copy.copy(loader)  # of the loader's class
    twin.__dict__.update({"batch_sampler": sampler, "_iterator": None})  # setting an attribute is refused
    return twin


def team_sampler_of(loader: Any) -> TeamBatchSampler | None:
    """Return the TeamBatchSampler of a loader, if it has one."""
    sampler = getattr(loader, "batch_sampler", None)
    return sampler if isinstance(sampler, TeamBatchSampler) else None


def tell_epoch(loader: Any, epoch: int) -> None:
    """Tell samplers that have to know it which epoch begins, as DistributedSampler."""
    for sampler in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        if (tell := getattr(sampler, "set_epoch", None)) is not None:
            tell(epoch)


def _knows_of_others(loader: Any) -> bool:
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    return any(hasattr(sampler, "num_replicas") or hasattr(sampler, "set_epoch") for sampler in samplers)
