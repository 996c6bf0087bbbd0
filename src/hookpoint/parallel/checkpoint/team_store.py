"""TeamStore: the checkpoints of a team, which its chief writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from hookpoint.core import errors
from hookpoint.core.checkpoint.rank_state import joined, own_state
from hookpoint.core.checkpoint.sharded_placeholder import has_placeholder
from hookpoint.core.checkpoint.store import Checkpoint, Request, ResumableStore, Resume, Saved
from hookpoint.core.errors import BadStrategy, CannotResume
from hookpoint.core.team.team import Team
from hookpoint.parallel.checkpoint._split_dtensors import SplitDTensors
from hookpoint.parallel.checkpoint.by_all import by_chief, on_all_ranks
from hookpoint.parallel.strategy.strategy import Apart
from hookpoint.parallel.team.torch_team import SECONDS


class OwnStore(ResumableStore, Protocol):
    """The store of one process, as a team needs it: it also reads for the others, and packs what they send to the chief.

    Tensors that are in parts on several processes it writes with all of them, into a folder that the chief's has made.
    """

    workdir: Path

    def write(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        elapsed: float,
        request: Request,
        staged: tuple[Path, Mapping[str, Sequence[Any]]] | None = None,
    ) -> Saved | None: ...

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint: ...

    def refuse_if_not_finite(self, parts: Mapping[str, Any], finite: Mapping[str, Iterable[str] | None]) -> None: ...

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]: ...

    def described(self, resume: Resume) -> dict[str, Any]: ...

    def stage(self, step: int) -> Path: ...

    def put_shards(self, folder: str | os.PathLike[str], tensors: Mapping[str, Any], group: Any) -> dict[str, list[Any]]: ...

    def unstage(self, folder: str | os.PathLike[str]) -> None: ...

    def read(self, path: str | os.PathLike[str]) -> Checkpoint: ...

    def packed(self, share: Mapping[str, Any]) -> bytes: ...

    def unpacked(self, data: bytes) -> dict[str, Any]: ...


class TeamStore:
    """Keep the checkpoints of a team in one place: those of the chief's store, with the share of each rank in them.

    All ranks call each method at the same place, but `describe` and `close`, which wait for nobody. Whatever fails on one rank
    fails on all, before any of them goes on: none waits for one that has given up. A save is over when `write` returns, also
    one that may be in the background: the ranks would have to find out together when it is. The chief holds the lock and
    writes; the others read the checkpoint to go on from by themselves, so that all must see the same workdir.

    Of tensors that are in parts on the ranks, DTensors, each rank writes its own, and reads what it needs when it goes on:
    none ever has all of one. The chief gives the folder its name when all have said that their files are on disk for good.
    """

    def __init__(self, store: OwnStore, apart: Apart | None = None) -> None:
        self._store = store
        self._apart = apart
        self._team: Team | None = None
        self._group: Any = None

    @property
    def workdir(self) -> Path:
        return self._store.workdir

    def join(self, team: Team) -> None:
        """Take the team of the run that begins."""
        self._team = team

    @property
    def team(self) -> Team:
        if self._team is None:
            raise BadStrategy("the store of a team is used before a run of that team has begun.", enter="the loop first")
        return self._team

    def open(self, resume: Resume, identity: Mapping[str, Any]) -> Checkpoint | None:
        """Let the chief take the workdir and find what to go on from; return it on all ranks, or raise the same on all."""
        self._refuse_different_runs(identity)
        found = self._by_chief(lambda: self._store.open(resume, identity), _path_of)
        read: Checkpoint | None = self.on_all_ranks(lambda: self._read(found) if isinstance(found, str) else found)
        return read

    def fill(self, found: Checkpoint, parts: Mapping[str, Any]) -> Checkpoint:
        """Return what to go on from with the tensors that were in parts, of which each rank reads what is to lie there."""
        if not has_placeholder(found.state):
            return found
        read: Checkpoint = self.on_all_ranks(lambda: self._store.fill(found, parts))
        return read

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse on all ranks what could not be read back from any."""
        taken = SplitDTensors(state)
        self.on_all_ranks(lambda: self._store.check(taken.rest))

    def write(self, state: Mapping[str, Any], *, step: int, elapsed: float, request: Request) -> Saved | None:
        """Keep the state of the chief and the share of each rank; return on all ranks when it is on disk for good."""
        own: dict[str, Any] = {}
        if self._apart is not None:
            own = SplitDTensors({"parts": dict(self._apart.rank_state(state["parts"]))}, fewest=inf).rest
            state = {**state, "parts": dict(self._apart.full_state(state["parts"]))}
        taken = SplitDTensors(state, fewest=0 if self._apart is None else self.team.size)

        def pack() -> bytes:
            finite = state.get("finite") or {}
            for parts in ([_here(state["parts"])] if taken.tensors else []) + ([own["parts"]] if own else []):
                self._store.refuse_if_not_finite(parts, finite)
            return self._store.packed({**own_state(taken.rest), **own})

        shares = self.team.to_chief(self.on_all_ranks(pack))
        # Where processes have different models, some may have tensors in parts, and others none.
        is_sharded = bool(taken.tensors) if self._apart is None else any(self.team.gather(bool(taken.tensors)))
        staged = self._staged(taken.tensors, step) if is_sharded else None
        now = replace(request, in_background=False)

        def save() -> Saved | None:
            try:
                everything = joined(taken.rest, [self._store.unpacked(share) for share in shares[1:]], own)
                return self._store.write(everything, step=step, elapsed=elapsed, request=now, staged=staged)
            except BaseException:
                if staged is not None:
                    self._store.unstage(staged[0])
                raise

        return _saved(self._by_chief(save, _facts_of))

    def _staged(self, tensors: Mapping[str, Any], step: int) -> tuple[Path, dict[str, Any]]:
        """Let all ranks write their parts into a folder of the chief's; return it with their files, or leave nothing there."""
        folder = Path(self._by_chief(lambda: self._store.stage(step), os.fspath))
        try:
            files = self.team.gather(self.on_all_ranks(lambda: self._store.put_shards(folder, tensors, self._writers())))
        except BaseException:
            if self.team.rank == 0:
                self._store.unstage(folder)
            raise
        return folder, {name: file for of_rank in files for name, file in of_rank.items()}

    def _writers(self) -> Any:
        """Return a group of this store's own, which all ranks make when they first write parts together."""
        if self._group is None:
            wait = timedelta(seconds=getattr(self.team, "seconds", SECONDS))
            self._group = dist.new_group(backend="gloo", timeout=wait)
        return self._group

    def collect(self, *, wait: bool = False) -> list[Saved]:
        """Return nothing: no save is ever under way."""
        return []

    def save(self, state: Mapping[str, Any], *, step: int, tags: Sequence[str]) -> Path:
        """Keep the state, and return its folder."""
        elapsed = float(state["clocks"]["elapsed"]) if "clocks" in state else 0.0
        saved = self.write(state, step=step, elapsed=elapsed, request=Request(dict.fromkeys(tags), in_background=False))
        assert saved is not None
        return Path(saved.path)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Let the chief write down what is known of the run."""
        if self.team.rank == 0:
            self._store.describe(facts)

    def described(self, resume: Resume) -> dict[str, Any]:
        """Return on all ranks what the chief's store knows of crashes: all of them refuse to start, or none."""
        known: dict[str, Any] = self._by_chief(lambda: self._store.described(resume), dict)
        return known

    def close(self) -> None:
        """Let go of the workdir, on the chief."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None
        if self._team is not None and self._team.rank == 0:
            self._store.close()

    def not_finite(self, named: Iterable[tuple[str, Any]]) -> list[str]:
        """Return the names of the tensors of which this rank's part holds NaN or infinity."""
        return self._store.not_finite(named)

    # Together

    def _read(self, path: str) -> Checkpoint:
        try:
            return self._store.read(path)
        except (OSError, errors.DamagedCheckpoint) as error:
            raise CannotResume(
                f"{path} cannot be read on rank {self.team.rank}, and could on the chief's: {error}",
                give="all processes a workdir that they share",
            ) from error

    def _refuse_different_runs(self, identity: Mapping[str, Any]) -> None:
        """Find out before anything is written whether all ranks train the same thing."""
        mine = {name: identity.get(name) for name in ("model", "optimizer", "seed", "accumulate", "precision")}
        for rank, others in enumerate(self.team.gather(mine)):
            for name, value in mine.items():
                if others[name] != value:
                    what = f"rank {rank} has {others[name]!r}, rank {self.team.rank} has {value!r}"
                    raise BadStrategy(f"the processes of this run differ in {name}: {what}.", make="the same on all")

    def on_all_ranks(self, work: Callable[[], Any]) -> Any:
        """Do something on each rank; where it fails on any, raise on all what the first of them has raised."""
        return on_all_ranks(self.team, work)

    def _by_chief(self, work: Callable[[], Any], facts: Callable[[Any], Any]) -> Any:
        return by_chief(self.team, work, facts)


def _here(parts: Any) -> Any:
    """Return what this rank has of sharded tensors, by the names of these; everything else, which the chief checks, is None."""
    if hasattr(parts, "to_local"):
        return parts.detach().to_local()
    return {name: _here(one) for name, one in parts.items()} if isinstance(parts, Mapping) else None


def _path_of(found: Checkpoint | None) -> str | None:
    return None if found is None else os.fspath(found.path)


def _facts_of(saved: Saved) -> dict[str, Any]:
    return {"path": os.fspath(saved.path), "step": saved.step, "tags": list(saved.tags), "seconds": saved.seconds}


def _saved(known: Any) -> Saved:
    """Return what was saved, on the chief as its store has said it, elsewhere as the chief has told it."""
    return known if isinstance(known, Saved) else Saved(**{**known, "path": Path(known["path"])})
