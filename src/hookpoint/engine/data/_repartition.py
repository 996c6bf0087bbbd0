"""Repartition: divide the rest of an epoch among a different number of ranks, or into batches of a different size.

The order of the samples in the epoch is determined in one of three ways, depending on the loader of the run that saved the
checkpoint:

- If a Runner sharded the loader, the checkpoint contains the order and the number of samples that were used.
- For a DistributedSampler, the order is computed from the seed and the epoch.
- For a single process, the order is drawn again from the state of the generators at the beginning of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.parallel.data.distribute_loader import is_plain, loader_with, team_sampler_of
from hookpoint.parallel.data.sampler import TeamBatchSampler

State = Mapping[str, Any]

DEFAULTS = {"order": None, "start": 0, "first": 0, "seed": 0, "epoch": 0, "shuffle": False}


def order_of(loader: Any) -> dict[str, Any] | None:
    """Return a description of this pass's sample order that any number of ranks can use, or None if the order is unknown.

    A custom sampler (kind "own") may yield a different order on each rank. Its description can be used only if the number of
    ranks has not changed.
    """
    team = team_sampler_of(loader)
    if team is not None:
        return {"kind": "team", **team.state_dict()}
    if is_plain(loader):
        return {"kind": "plain", "shuffle": isinstance(loader.sampler, RandomSampler), **_sizes(loader, 1)}
    sampler = _distributed(loader)
    if sampler is None:
        return {"kind": "own", **_sizes(loader, 1)} if _has_known_sizes(loader) else None
    own = {"shuffle": sampler.shuffle, "seed": sampler.seed, "epoch": sampler.epoch}
    return {"kind": "distributed", **own, **_sizes(loader, sampler.num_replicas)}


def rest_of(loader: Any, order: State, batches: int, rank: int, size: int) -> tuple[Any, TeamBatchSampler, int]:
    """Return a loader over the rest of a pass, its batch sampler, and how many batches of this sampler are done.

    `order` is the state of a TeamBatchSampler. If the loader has no TeamBatchSampler, a new loader with such a sampler is
    created.
    """
    sampler = team_sampler_of(loader)
    if sampler is None:
        if size > 1 and _distributed(loader) is None:
            raise unknown_order(loader)
        sizes = _sizes(loader, size)
        sampler = TeamBatchSampler(sizes["length"], sizes["batch_size"], rank=rank, size=size, drop_last=loader.drop_last)
        loader = loader_with(loader, batch_sampler=sampler)
    if order["length"] != sampler.length:
        what = f"the training data has {sampler.length} samples, but had {order['length']} in the checkpoint."
        raise CannotResume(what, give="the same data, or resume from the end of an epoch")
    return loader, sampler, sampler.resume(order, batches)


def as_team_state(
    order: State | None, record: State, put_generators: Callable[[], None], loader: Any, *, is_same_team: bool = False
) -> State:
    """Convert the order of a pass to the state of a TeamBatchSampler.

    `put_generators` restores the state that the random number generators had at the beginning of the pass. It is called if the
    order must be drawn again.
    """
    if order is None or (order["kind"] == "own" and not is_same_team):
        raise unknown_order(loader)
    if order["kind"] == "team":
        return order
    drawn: list[Any] | None = None
    if order["kind"] == "own":
        drawn = _draw(loader.sampler, record, put_generators, loader.generator)
        if not all(isinstance(index, int) for index in drawn):
            what = (
                f"{type(loader.sampler).__name__} does not yield integers, so its epoch cannot be split into different batches."
            )
            raise CannotResume(what, give="the batch size of the checkpoint")
    elif order["shuffle"] and order["kind"] == "plain":
        state = record["begun"]["generators"].get("generator")
        generator = None if state is None else torch.Generator()
        if generator is not None:
            generator.set_state(state)
        drawn = _draw(RandomSampler(range(order["length"]), generator=generator), record, put_generators, generator)
    elif order["shuffle"]:
        samples: Any = range(order["length"])
        full: DistributedSampler[Any] = DistributedSampler(samples, 1, 0, seed=order["seed"], shuffle=True)
        full.set_epoch(order["epoch"])
        drawn = list(full)
    return {**DEFAULTS, **order, **({} if drawn is None else {"order": torch.tensor(drawn)})}


def unknown_order(loader: Any) -> CannotResume:
    return CannotResume(
        f"{type(loader).__name__} cannot resume within an epoch with a different number of ranks: its order is unknown.",
        resume="from a checkpoint at the end of an epoch",
        use="a DataLoader without a sampler, or with a DistributedSampler, instead",
    )


def _draw(sampler: Any, record: State, put_generators: Callable[[], None], generator: torch.Generator | None) -> list[Any]:
    """Return the indices that a sampler yields in a pass. Random numbers are drawn in the same order as when the pass ran."""
    put_generators()
    if record["had_iterator"]:  # a loader with persistent workers draws no new seed
        return list(sampler)
    # A DataLoader draws a seed before its sampler draws any numbers. Use a DataLoader, so that this seed is drawn here, too.
    return list(DataLoader(IndexDataset(), sampler=sampler, batch_size=1, generator=generator, collate_fn=_only))


def _only(batch: list[Any]) -> Any:
    return batch[0]


class IndexDataset(Dataset[Any]):
    """A dataset in which each sample is its own index."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _distributed(loader: Any) -> DistributedSampler[Any] | None:
    sampler = getattr(loader, "sampler", None)
    return sampler if type(sampler) is DistributedSampler and type(loader.batch_sampler) is BatchSampler else None


def _has_known_sizes(loader: Any) -> bool:
    is_batched = isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler
    return is_batched and not isinstance(loader.dataset, IterableDataset) and length_of(loader.sampler) is not None


def _sizes(loader: Any, size: int) -> dict[str, int]:
    samples = loader.dataset if is_plain(loader) or _distributed(loader) is not None else loader.sampler
    return {"length": len(samples), "batch_size": loader.batch_sampler.batch_size, "size": size}
