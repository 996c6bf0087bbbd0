"""Lineage: the checkpoints that a run's state came from, oldest first.

Each entry is a plain dict. `kind` is "resume" or "weights". `run` is the run that saved the checkpoint (`id`, `name` and
`workdir`). `checkpoint` is the name or path of the checkpoint, and `step` and `epoch` say when it was saved. `at` is the
time when a run resumed from the checkpoint or started with its weights. The lineage of the run that saved the checkpoint comes
before this entry, so the lineage is complete even if that run is deleted.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hookpoint.core.errors import DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import is_like_a_checkpoint, read_manifest
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, WEIGHTS
from hookpoint.storage.run_file import LINEAGE, as_list, read_run_file

ATTRIBUTE = "_lineage"  # loaded weights are an OrderedDict with this attribute; a plain dict cannot have attributes
MAX_ENTRIES = 100
RESUME, GIVEN = "resume", "weights"
TEXTS, NUMBERS = ("kind", "checkpoint", "at", "sha256", "averaged"), ("step", "epoch", "tensors")


def lineage_of_resume(folder: Path, workdir: Path) -> list[dict[str, Any]]:
    """Return the lineage of a run that resumes from a checkpoint. The checkpoint may be in another run's workdir."""
    return _extended(folder, RESUME, source=_source_of(folder, workdir))


def lineage_of_weights(path: Path, averaged: bool | str) -> list[dict[str, Any]]:
    """Return the lineage of weights that are loaded from a checkpoint or from a file."""
    is_file = not is_like_a_checkpoint(path)
    folder = path.parent if is_file else path
    if is_file and not is_like_a_checkpoint(folder):
        return [{"kind": GIVEN, "checkpoint": os.fspath(path)}]
    more = {"averaged": str(averaged)} if averaged else {}
    return _extended(folder, GIVEN, source=_source_of(folder, None), **more)


def with_lineage(weights: Mapping[str, Any], lineage: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the weights as a dict that stores their lineage in an attribute."""
    result = OrderedDict(weights)
    setattr(result, ATTRIBUTE, lineage)
    return result


def lineage_of_init(weights: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lineage of a run that starts from these weights.

    If the origin of the weights is unknown, the lineage has a single entry, which names no checkpoint.
    """
    known = [weights, *(part for part in weights.values() if isinstance(part, Mapping))]
    found = [entry for part in known for entry in getattr(part, ATTRIBUTE, ())]
    return valid(found) or [{"kind": GIVEN, "tensors": len(weights)}]


def valid(entries: Any) -> list[dict[str, Any]]:
    """Return the valid entries of a lineage from a run.json, which may be untrusted.

    At most 100 entries are returned. If there are more, entries are removed in two steps. First, if a run was resumed several
    times in a row, only the last of these entries is kept. Then, only the newest 100 entries are kept.
    """
    found = [entry for entry in map(_valid, as_list(entries)) if entry]
    if len(found) > MAX_ENTRIES:
        found = [entry for entry, after in pairwise([*found, {}]) if not _is_repeated(entry, after)][-MAX_ENTRIES:]
    return found


def _is_repeated(entry: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return entry["kind"] == after.get("kind") == RESUME and entry.get("run") == after.get("run")


def _valid(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or entry.get("kind") not in (RESUME, GIVEN):
        return {}
    result: dict[str, Any] = {name: entry[name] for name in TEXTS if isinstance(entry.get(name), str)}
    result |= {name: entry[name] for name in NUMBERS if type(entry.get(name)) is int}
    run = entry.get("run")
    if isinstance(run, Mapping):
        result["run"] = {name: run[name] for name in ("id", "name", "workdir") if isinstance(run.get(name), str)}
    return result


def _source_of(folder: Path, workdir: Path | None) -> Path | None:
    """Return the workdir that contains a checkpoint, or None if the checkpoint is a copy outside a workdir."""
    folder = Path(os.path.realpath(folder))
    if folder.parent.name != CHECKPOINTS:
        return None
    source = folder.parent.parent
    return workdir if workdir is not None and os.path.realpath(workdir) == os.fspath(source) else source


def _extended(folder: Path, kind: str, *, source: Path | None, **more: Any) -> list[dict[str, Any]]:
    facts = {} if source is None else read_run_file(source)
    entry: dict[str, Any] = {"kind": kind}
    if source is not None:
        run = {name: facts[name] for name in ("id", "name") if isinstance(facts.get(name), str)}
        entry["run"] = {**run, "workdir": os.path.realpath(source)}
    entry["checkpoint"] = folder.name if source is not None else os.fspath(folder)
    try:
        manifest = read_manifest(folder)
    except (DamagedCheckpoint, OSError):  # the checkpoint was deleted after it was read
        return [*valid(facts.get(LINEAGE)), {**entry, **more}]
    entry |= {"step": manifest.step, "epoch": manifest.moment.epoch, **more}
    if kind == GIVEN and WEIGHTS in manifest.files:
        entry["sha256"] = manifest.files[WEIGHTS].sha256
    return [*valid(facts.get(LINEAGE)), entry]
