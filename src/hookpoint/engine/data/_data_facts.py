"""Data facts: facts about the training data, for comparison with a checkpoint. Only a small part of the data is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

from hookpoint.core.data.samples import length_of
from hookpoint.core.errors import CannotResume
from hookpoint.parallel.data.distribute_loader import team_sampler_of
from hookpoint.parallel.data.sampler import TeamBatchSampler

ROWS, COLUMNS = 8, 64  # how much of each TensorDataset tensor is hashed: enough to distinguish datasets
IN_ORDER, SHUFFLED = "in order", "shuffled"
NAMES = {"SequentialSampler": IN_ORDER, "RandomSampler": SHUFFLED}
WARNED = {
    "dataset": "is it the same data?",
    "samples": "epochs have a different length",
    "drawn": "the sampler draws a different number of samples",
    "order": "epochs have a different order",
    "drop_last": "the last batch of an epoch differs",
    "batches": "is it the same data?",
}
REFUSED = {
    "samples": "the order of this epoch was drawn for a different number of samples",
    "drawn": "the order of this epoch was drawn for a different number of samples",
    "order": "some samples would be used twice in this epoch, and others never",
}


def facts_of(loader: Any) -> dict[str, Any]:
    """Return facts about a DataLoader, such as its dataset, length and order. For any other loader, return only its length."""
    if not isinstance(loader, DataLoader):
        return {"batches": length_of(loader)}
    data, batches = loader.dataset, loader.batch_sampler
    facts: dict[str, Any] = {"dataset": _named(data), "batch_size": batch_size_of(loader), "samples": length_of(data)}
    if isinstance(data, IterableDataset):
        return facts
    team, is_custom = team_sampler_of(loader), batches is not None and type(batches) is not BatchSampler
    name = type(batches if is_custom else loader.sampler).__name__
    order = NAMES.get(name, name) if team is None else SHUFFLED if team.shuffle else IN_ORDER
    return {**facts, "order": order, "drop_last": getattr(batches, "drop_last", None)}


def facts_of_pass(loader: Any) -> dict[str, Any]:
    """Return the facts about a DataLoader, and the number of samples that its sampler draws in a pass."""
    sampler = getattr(loader, "sampler", None) if isinstance(loader, DataLoader) else None
    if sampler is None or hasattr(sampler, "num_replicas"):  # for DistributedSampler, it depends on the number of ranks
        return facts_of(loader)
    return {**facts_of(loader), "drawn": length_of(sampler)}


def has_own_sampler(loader: Any) -> bool:
    """Return whether the user has written the loader's sampler. Its number of samples may depend on the epoch."""
    return isinstance(loader, DataLoader) and not type(loader.sampler).__module__.startswith("torch.")


def facts_of_order(order: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return facts about the DataLoader of a saved run, from the sample order that the checkpoint contains.

    Checkpoints from earlier releases contain no other facts about the data. If the DataLoader of the saved run had a custom
    sampler, the result is empty.
    """
    if order is None or order["kind"] not in ("plain", "team"):
        return {}
    shuffled = SHUFFLED if order["shuffle"] else IN_ORDER
    return {"samples": order["length"], "batch_size": order["batch_size"], "order": shuffled}


def batch_size_of(loader: Any) -> int | None:
    """Return a loader's batch size, or None if a custom sampler determines it."""
    batches = loader.batch_sampler if isinstance(loader, DataLoader) else None
    return batches.batch_size if type(batches) in (BatchSampler, TeamBatchSampler) else None  # type: ignore[union-attr]


def compared(saved: Mapping[str, Any], now: Mapping[str, Any], *, in_epoch: bool) -> str:
    """Return a table of changed facts, or "" if nothing changed.

    Raise CannotResume if a change makes it impossible to resume in the middle of an epoch. The batch size is not compared,
    because the rest of an epoch can be split into batches of any size.
    """
    changed = [name for name in WARNED if name in saved and name in now and saved[name] != now[name]]
    if "drawn" in changed and all(facts["drawn"] == facts.get("samples") for facts in (saved, now)):
        changed.remove("drawn")  # every sample is drawn
    if not changed:
        return ""
    from hookpoint.storage.workdir.identity import Row, table

    rows = []
    for name in changed:
        stays_in_order = {saved.get("order", IN_ORDER), now.get("order", IN_ORDER)} == {IN_ORDER}
        is_refused = in_epoch and name in REFUSED and not (stays_in_order and name in ("samples", "drawn"))
        why = REFUSED[name] if is_refused else WARNED[name]
        rows.append(Row(name, saved[name], now[name], "refused" if is_refused else "warned", why))
    if any(row.verdict == "refused" for row in rows):
        raise CannotResume(
            f"the checkpoint was saved in the middle of an epoch, and the training data has changed since then.\n{table(rows)}",
            give="the same data",
            resume="from a checkpoint at the end of an epoch: resume='.../checkpoints/step-...'",
            start="over with resume='never'",
        )
    return table(rows)


def digest_of(dataset: Any) -> str | None:
    """Return a digest of some rows of a TensorDataset, or None for any other dataset."""
    if type(dataset) is not TensorDataset:
        return None
    digest = hashlib.sha256()
    for tensor in dataset.tensors:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.dim() and tensor.numel():
            some = torch.linspace(0, len(tensor) - 1, min(ROWS, len(tensor)), device="cpu").long()
            rows = tensor.detach()[some].flatten(1)[:, :COLUMNS] if tensor.dim() > 1 else tensor.detach()[some]
            digest.update(rows.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:8]


def _named(dataset: Any) -> str:
    """Return the class name of a dataset and, for a TensorDataset, the shapes of its tensors and a digest of some rows."""
    name, digest = type(dataset).__name__, digest_of(dataset)
    if digest is None:
        return name
    shapes = ", ".join(str(tuple(tensor.shape[1:])) for tensor in dataset.tensors)
    return f"{name} of {shapes} ({digest})"
