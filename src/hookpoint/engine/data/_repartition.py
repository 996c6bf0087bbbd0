"""Shared order: the samples of an epoch that was begun with other batches, from the first that nobody has seen.

Another number of processes makes other batches, and so does another batch size. How the rest is found, by what the loader was
when the checkpoint was made: one that a Runner has spread over processes knows its order and how much of it was seen; a
DistributedSampler's order comes from its seed and epoch; that of one process alone is drawn again, from where the generators
stood when the pass began.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.parallel.data.distribute_loader import is_plain, team_sampler_of
from hookpoint.parallel.data.sampler import TeamBatchSampler

ONE_BY_ONE = {"order": None, "start": 0, "first": 0}


def order_of(loader: Any) -> dict[str, Any] | None:
    """Return what it takes to know, in other batches, which samples of this pass come when; None where that is not known.

    That of a user's own sampler, "own", is not known to other processes.
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


def rest_of(loader: Any, kept: Mapping[str, Any], batches: int, rank: int, size: int) -> tuple[Any, TeamBatchSampler, int]:
    """Return a loader of what is left of a pass, its sampler, and how many batches of this team's are done.

    `kept` is the state of a TeamBatchSampler; the loader's own goes on with it, where it has one.
    """
    sampler = team_sampler_of(loader)
    if sampler is None:
        if size > 1 and _distributed(loader) is None:
            raise unknown_order(loader)
        sizes = _sizes(loader, size)
        sampler = TeamBatchSampler(sizes["length"], sizes["batch_size"], rank=rank, size=size, drop_last=loader.drop_last)
        twin = copy.copy(loader)
        twin.__dict__.update({"batch_sampler": sampler, "_iterator": None})  # setting an attribute is refused
        loader = twin
    if kept["length"] != sampler.length:
        raise CannotResume(
            f"the training data has {sampler.length} samples, and had {kept['length']} when the checkpoint was made.",
            give="the same data, or start from the end of an epoch",
        )
    return loader, sampler, sampler.resume(kept, batches)


def as_team_state(
    order: Mapping[str, Any] | None,
    record: Mapping[str, Any],
    put_generators: Callable[[], None],
    loader: Any,
    *,
    is_same_team: bool = False,
) -> Mapping[str, Any]:
    """Return the order of a pass as the state of a TeamBatchSampler, whatever has made it.

    `put_generators` puts the generators to where the pass began, for those whose order was drawn from them.
    """
    if order is None or (order["kind"] == "own" and not is_same_team):
        raise unknown_order(loader)
    if order["kind"] == "team":
        return order
    known = {**ONE_BY_ONE, "seed": 0, "epoch": 0, "shuffle": False, **order}
    if order["kind"] == "own":
        drawn = _drawn_by(loader.sampler, record, put_generators, loader.generator)
        if not all(isinstance(index, int) for index in drawn):
            raise CannotResume(
                f"{type(loader.sampler).__name__} gives no numbers: its epoch cannot be cut into other batches.",
                give="the batch size as it was when the checkpoint was made",
            )
        known["order"] = torch.tensor(drawn)
    elif order["shuffle"]:
        drawn = _drawn_anew(order, record, put_generators) if order["kind"] == "plain" else _of_epoch(order)
        known["order"] = torch.tensor(drawn)
    return known


def unknown_order(loader: Any) -> CannotResume:
    return CannotResume(
        f"{type(loader).__name__} does not say which samples other processes have: another number of them cannot go on in"
        " the middle of its epoch.",
        start="from a checkpoint that was made at the end of an epoch",
        use="or a DataLoader without a sampler of its own, or with a DistributedSampler",
    )


def _drawn_anew(order: Mapping[str, Any], record: Mapping[str, Any], put_generators: Callable[[], None]) -> list[int]:
    kept = record["begun"]["generators"].get("generator")
    generator = None if kept is None else torch.Generator()
    if generator is not None:
        generator.set_state(kept)
    return _drawn_by(RandomSampler(range(order["length"]), generator=generator), record, put_generators, generator)


def _drawn_by(
    sampler: Any, record: Mapping[str, Any], put_generators: Callable[[], None], generator: torch.Generator | None
) -> list[int]:
    """Return what a sampler gives when a pass begins, with all that its loader draws before."""
    put_generators()
    if record["had_iterator"]:  # workers that stay draw no seed for themselves
        return list(sampler)
    # In batches, so that the loader draws its seed before a sampler that draws as soon as it is asked for an iterator.
    return list(DataLoader(AsGiven(), sampler=sampler, batch_size=1, generator=generator, collate_fn=_the_only_one))


def _the_only_one(batch: list[Any]) -> Any:
    return batch[0]


class AsGiven(Dataset[Any]):
    """A data set whose samples are their indices."""

    def __getitem__(self, index: Any) -> Any:
        return index


def _of_epoch(order: Mapping[str, Any]) -> list[int]:
    samples: Any = range(order["length"])
    whole: DistributedSampler[Any] = DistributedSampler(samples, 1, 0, seed=order["seed"], shuffle=True)
    whole.set_epoch(order["epoch"])
    return list(whole)


def _distributed(loader: Any) -> DistributedSampler[Any] | None:
    sampler = getattr(loader, "sampler", None)
    return sampler if type(sampler) is DistributedSampler and type(loader.batch_sampler) is BatchSampler else None


def _has_known_sizes(loader: Any) -> bool:
    is_cut_by_torch = isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler
    return is_cut_by_torch and not isinstance(loader.dataset, IterableDataset) and length_of(loader.sampler) is not None


def _sizes(loader: Any, size: int) -> dict[str, int]:
    samples = loader.dataset if is_plain(loader) or _distributed(loader) is not None else loader.sampler
    return {"length": len(samples), "batch_size": loader.batch_sampler.batch_size, "size": size}
