"""TeamStore: write and read checkpoints that contain the state of all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hookpoint.core import errors
from hookpoint.core.checkpoint.layer_versions import put_versions, versions_of
from hookpoint.core.checkpoint.rank_state import extract_rank_state, merge_rank_states
from hookpoint.core.checkpoint.sharded_placeholder import ShardedPlaceholder, has_placeholder
from hookpoint.core.checkpoint.store import Checkpoint, Request, ResumableStore, Resume, Saved
from hookpoint.core.errors import BadStrategy, CannotResume
from hookpoint.core.team.team import Team
from hookpoint.parallel.checkpoint.collective_calls import on_all_ranks, on_chief
from hookpoint.parallel.strategy.strategy import PerRankModel
from hookpoint.parallel.team.torch_team import SECONDS


class TeamStore(ResumableStore):
    """Use the chief's store for checkpoints that contain the state of each rank.

    All ranks must call each method together, except `describe` and `close`, which do not communicate. An error on one rank is
    raised on all ranks, so that no rank waits for a rank that has failed. Saves are synchronous, even if background saves were
    requested. The chief holds the lock and writes the checkpoint. The other ranks read checkpoints themselves, so all ranks
    need access to the same workdir.

    Each rank writes its own shards of DTensors and reads only the shards that it needs, so no rank ever holds a full tensor.
    The chief renames the folder when the files of all ranks are on disk.
    """

    def __init__(self, store: Any, per_rank: PerRankModel | None = None) -> None:
        self._store = store  # a CheckpointStore
        self._per_rank = per_rank
        self._team: Team | None = None
        self._group: Any = None

    @property
    def workdir(self) -> Path:
        return Path(self._store.workdir)

    @property
    def key_fingerprint(self) -> str | None:
        fingerprint: str | None = getattr(self._store, "key_fingerprint", None)
        return fingerprint

    def join(self, team: Team) -> None:
        """Set the team for the run that is about to begin."""
        self._team = team

    @property
    def team(self) -> Team:
        if self._team is None:
            raise BadStrategy("the team's store was used before its run began.", enter="the loop first")
        return self._team

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Lock the workdir on the chief, find the checkpoint to resume from, and return this checkpoint on all ranks."""
        self._check_same_run(identity)
        found = self._on_chief(lambda: self._store.open(resume, identity), lambda found: found and os.fspath(found.path))
        checkpoint: Checkpoint | None = self.on_all_ranks(lambda: self._read(found) if isinstance(found, str) else found)
        return checkpoint

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint:
        """Load the sharded tensors of a checkpoint. Each rank reads its own shards."""
        if not has_placeholder(found.state):
            return found
        checkpoint: Checkpoint = self.on_all_ranks(lambda: self._store.fill(found, parts))
        return checkpoint

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise an error on all ranks if the state of any rank cannot be restored from a checkpoint."""
        split = SplitDTensors(state)
        self.on_all_ranks(lambda: self._store.check(split.rest))

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        """Write the chief's state and the state of each rank. The call returns on all ranks when everything is on disk."""
        own: dict[str, Any] = {}
        if self._per_rank is not None:
            own = SplitDTensors({"parts": dict(self._per_rank.rank_state(state["parts"]))}, min_ranks=inf).rest
            state = {**state, "parts": dict(self._per_rank.full_state(state["parts"]))}
        split = SplitDTensors(state, min_ranks=0 if self._per_rank is None else self.team.size)

        def pack() -> Any:
            finite = state.get("finite") or {}
            for parts in ([_local(state["parts"])] if split.tensors else []) + ([own["parts"]] if own else []):
                self._store.refuse_if_not_finite(parts, finite)
            return self._store.packed({**extract_rank_state(split.rest), **own})

        packed = self.team.to_chief(self.on_all_ranks(pack))
        # If ranks have different models, some ranks may have no sharded tensors.
        is_sharded = bool(split.tensors) if self._per_rank is None else any(self.team.gather(bool(split.tensors)))
        staged = self._write_shards(split.tensors, step) if is_sharded else None
        now = replace(request, in_background=False)

        def save() -> Any:
            try:
                full = merge_rank_states(split.rest, [self._store.unpacked(data) for data in packed[1:]], own)
                return self._store.write(full, step=step, elapsed=elapsed, request=now, staged=staged)
            except BaseException:
                if staged is not None:
                    self._store.unstage(staged[0])
                raise

        saved = self._on_chief(save, _as_json)
        return saved if isinstance(saved, Saved) else Saved(**{**saved, "path": Path(saved["path"])})

    def _write_shards(self, tensors: Mapping[str, Any], step: int) -> tuple[Path, dict[str, Any]]:
        """Write the shards of all ranks to a new folder. Return the folder and its files. After an error, remove the folder."""
        folder = Path(self._on_chief(lambda: self._store.stage(step), os.fspath))
        try:
            files = self.team.gather(self.on_all_ranks(lambda: self._store.put_shards(folder, tensors, self._shard_group())))
        except BaseException:
            if self.team.rank == 0:
                self._store.unstage(folder)
            raise
        return folder, {name: file for of_rank in files for name, file in of_rank.items()}

    def _shard_group(self) -> Any:
        """Return the process group for writing shards. All ranks create it together, in the first save that needs it."""
        if self._group is None:
            timeout = timedelta(seconds=getattr(self.team, "seconds", SECONDS))
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        return self._group

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return an empty list, because saves never run in the background."""
        return []

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Write the run's description to run.json on the chief. Do nothing on other ranks."""
        if self.team.rank == 0:
            self._store.describe(facts)

    def described(self, resume: Resume) -> dict[str, Any]:
        """Return the chief's record of crashes. All ranks get the same record, so either all ranks start or none does."""
        return dict(self._on_chief(lambda: self._store.described(resume), dict))

    def close(self) -> None:
        """Release the workdir on the chief."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
        if self._team is not None and self._team.rank == 0:
            self._store.close()

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of tensors whose local shard contains NaN or infinity."""
        return list(self._store.not_finite(named))

    def on_all_ranks(self, call: Callable[[], Any]) -> Any:
        """Call a function on all ranks. If it fails on any rank, raise an error on all ranks.

        If the function fails on several ranks, all ranks raise the error from the lowest of these ranks.
        """
        return on_all_ranks(self.team, call)

    def _on_chief(self, call: Callable[[], Any], summary: Callable[[Any], Any]) -> Any:
        return on_chief(self.team, call, summary)

    def _read(self, path: str) -> Any:
        try:
            return self._store.read(path)
        except (OSError, errors.DamagedCheckpoint) as error:
            raise CannotResume(
                f"rank {self.team.rank} cannot read {path}, but the chief can: {error}",
                give="all ranks access to the same workdir",
            ) from error

    def _check_same_run(self, identity: Mapping[str, Any]) -> None:
        """Check that all ranks train the same model in the same way, before anything is written."""
        mine = {name: identity.get(name) for name in ("model", "optimizer", "seed", "accumulate", "precision")}
        mine["checkpoint_key"] = self.key_fingerprint  # all shards must be readable with the chief's key
        for rank, other in enumerate(self.team.gather(mine)):
            for name, value in mine.items():
                if other[name] != value:
                    what = f"rank {rank} has {other[name]!r}, rank {self.team.rank} has {value!r}"
                    raise BadStrategy(f"{name} differs between ranks: {what}.", make="it the same on all ranks")


def _local(parts: Any) -> Any:
    """Return the local shards of sharded tensors by name.

    All other values become None, because the chief checks these values for NaN and infinity.
    """
    if hasattr(parts, "to_local"):
        return parts.detach().to_local()
    return {name: _local(part) for name, part in parts.items()} if isinstance(parts, Mapping) else None


def _as_json(saved: Saved) -> dict[str, Any]:
    return {"path": os.fspath(saved.path), "step": saved.step, "tags": list(saved.tags), "seconds": saved.seconds}


class SplitDTensors:
    """Separate the DTensors from the rest of a state.

    `tensors` contains the DTensors by name. `rest` is the state with a placeholder for each DTensor. A tensor's name is its
    path in the state, such as `parts.model.0.weight`. The name is the same on all ranks. A tied tensor is listed once. Partial
    tensors are converted to full tensors, in a collective call on their ranks. Tensors that are sharded over fewer than
    `min_ranks` ranks are also converted, because the other ranks may have a different tensor with the same name.
    """

    def __init__(self, state: Mapping[str, Any], *, min_ranks: float = 0) -> None:
        self._min_ranks = min_ranks
        self.tensors: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self.rest: dict[str, Any] = self._split(state, ())

    def _split(self, value: Any, path: tuple[str, ...]) -> Any:
        if hasattr(value, "full_tensor"):  # detects a DTensor without importing its class, which takes a second
            return self._placeholder(value.detach(), path)
        if isinstance(value, Mapping):
            split = {key: self._split(item, (*path, str(key))) for key, item in value.items()}
            return value if all(split[key] is item for key, item in value.items()) else _like(value, split)
        if type(value) in (list, tuple):
            items = [self._split(item, (*path, str(number))) for number, item in enumerate(value)]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else type(value)(items)
        return value

    def _placeholder(self, tensor: Any, path: tuple[str, ...]) -> Any:
        if tensor.device_mesh.size() < self._min_ranks or any(placement.is_partial() for placement in tensor.placements):
            return tensor.full_tensor().cpu()
        local = tensor.to_local()
        # Detect tied tensors by their storage, not by their address. Empty shards have no address, so a rank with empty shards
        # could treat different tensors as tied. It would then list fewer names than the other ranks.
        storage = local.untyped_storage()._cdata
        memory = (storage, local.storage_offset(), local.shape, local.stride(), local.dtype, tensor.shape)
        if memory not in self._names:
            name = ".".join(path)
            while name in self.tensors:  # keys may contain dots
                name += "'"
            self._names[memory] = name
            self.tensors[name] = tensor
        return ShardedPlaceholder(self._names[memory])


def _like(mapping: Any, items: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with these items. A module's state dict also keeps its module versions."""
    copied = type(mapping)(items)
    put_versions(copied, versions_of(mapping))
    return copied
