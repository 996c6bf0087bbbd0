"""Prepare a workdir for a run. The run must already have locked the workdir."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hookpoint.core.checkpoint.sharded_placeholder import has_placeholder
from hookpoint.core.checkpoint.store import Checkpoint, Resume
from hookpoint.core.errors import BadArgument, CannotResume
from hookpoint.storage.checkpoint.checkpoint_folder import discard
from hookpoint.storage.checkpoint.fingerprint import differences, fits
from hookpoint.storage.checkpoint.layout import Place, checkpoints, is_leftover
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir import best_links, named_links, quarantine
from hookpoint.storage.workdir.catalog import entries
from hookpoint.storage.workdir.find_checkpoint import Found, find
from hookpoint.storage.workdir.identity import compare, table

logger = logging.getLogger("hookpoint")

WORLD_SIZE = "world_size"
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path merges the two slashes of a URL into one


def local_folder(workdir: str | os.PathLike[str]) -> Path:
    """Return the workdir as a local path. Raise BadArgument if it is empty, is a URL, or begins with `~`.

    Only a shell expands `~`.
    """
    if not os.fspath(workdir):
        raise BadArgument("workdir is empty, and would be the current folder.", give='workdir="runs/mine", or workdir=None')
    if URL.match(os.fspath(workdir)):
        raise BadArgument(
            f"workdir={str(workdir)!r} is a URL; a workdir must be a local folder.",
            give='workdir="runs/mine", and callbacks=[Mirror("s3://...")] for a copy of it',
            mount="the bucket with s3fs, gcsfuse or blobfuse, and pass the mount point",
        )
    if os.fspath(workdir).partition("/")[0] == "~":
        raise BadArgument(
            f"workdir={str(workdir)!r} would create a folder called ~ in the current folder.",
            write=f"workdir=os.path.expanduser({str(workdir)!r})",
        )
    return Path(workdir)


def prepare(
    workdir: Path,
    resume: Resume,
    identity: Mapping[str, Any],
    allow_world_change: bool = False,
    tensors: Mapping[str, str] | None = None,
) -> Checkpoint | None:
    """Prepare the workdir for writing, and return the checkpoint to resume from, or None for a new run.

    An earlier run's files are moved only after all checks have passed, that is, when this run can start.
    """
    for folder in (workdir, checkpoints(workdir)):
        if disk.is_folder(folder, follow=True):
            _probe(folder)
    _remove_leftovers(workdir)
    found = None if resume == "never" else find(workdir, resume)
    if found is not None:
        _check_identity(found, identity, allow_world_change, tensors)
    quarantine.move_foreign(workdir)
    if found is None:
        quarantine.move_run(workdir)
    elif resume not in ("auto", "must"):
        _move_earlier(workdir, found)
    found_now = entries(workdir)
    best_links.heal(workdir, found_now)
    named_links.heal(workdir, found_now)
    return None if found is None else Checkpoint(found.path, found.state, found.manifest.info)


def _probe(folder: Path) -> None:
    """Check that the folder is writable by writing a file."""
    file = folder / disk.hidden("probe", "writable")
    try:
        disk.write(file, b"?")
    finally:
        discard(file)


def _remove_leftovers(workdir: Path) -> None:
    for folder in (workdir, checkpoints(workdir)):
        for name in filter(is_leftover, disk.names(folder)):
            discard(folder / name)


def _check_identity(
    found: Found, identity: Mapping[str, Any], allow_world_change: bool, tensors: Mapping[str, str] | None
) -> None:
    """Raise CannotResume if this run cannot resume from a checkpoint. Log a warning about other differences.

    `tensors` maps the names of the model's tensors to their shapes and types, or is None if these are unknown. If
    `tensors` is given, the error lists the tensors that differ.
    """
    saved, model = found.manifest.identity, found.state.get("parts", {}).get("model")
    if fits(model, identity.get("model")):
        saved = {**saved, "model": identity.get("model")}
    rows = compare(saved, identity)
    if allow_world_change:
        rows = [row._replace(verdict="warned") if row.name == WORLD_SIZE else row for row in rows]
    refused = [row.name for row in rows if row.verdict == "refused"]
    if refused:
        cures = {"run": "the script as it was when the checkpoint was saved", "start": 'over with resume="never"'}
        if refused == [WORLD_SIZE]:
            cures["allow"] = (
                "it with allow_world_change=True: no sample is lost or repeated, but random number generators are seeded again"
            )
        differing = differences(model, tensors) if "model" in refused and tensors and not has_placeholder(model) else []
        if differing:
            rows = [row._replace(saved="see below", now="see below") if row.name == "model" else row for row in rows]
            # If the model's tensors differ, so do the optimizer's parameters. The error lists only the model's tensors.
            rows = [row for row in rows if row.name != "optimizer_parameters"]
        listed = "".join(f"\n  {line}" for line in differing)
        raise CannotResume(f"{found.path} does not match this run.\n{table(rows)}{listed}", **cures)
    warned = [row for row in rows if row.verdict == "warned"]
    if warned:
        logger.warning("%s was saved by a run with different settings:\n%s", found.path, table(warned))


def _move_earlier(workdir: Path, found: Found) -> None:
    """Move the earlier run's files to previous/.

    If this run resumes from a checkpoint in the same workdir, move only the checkpoints that are later than that checkpoint.
    """
    if os.path.realpath(checkpoints(workdir)) != os.path.realpath(found.path.parent):
        quarantine.move_run(workdir)
        return
    same = [entry.place for entry in entries(workdir) if entry.manifest == found.manifest]
    place = Place.of(found.path.name) or (same[0] if same else Place(found.manifest.step, sys.maxsize))
    quarantine.move_later(workdir, place, found.manifest.moment)
