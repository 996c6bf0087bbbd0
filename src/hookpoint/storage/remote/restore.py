"""Restore: copy a run from its mirror into an empty workdir."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.storage.checkpoint.checkpoint_folder import discard, new_staging, verified
from hookpoint.storage.checkpoint.layout import BEST, CHECKPOINTS, MANIFEST, Place, checkpoints
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import disk
from hookpoint.storage.remote.mirrored import is_log, offered, remote_manifest
from hookpoint.storage.remote.remote_folder import RemoteFolder

logger = logging.getLogger("hookpoint")


def restore(remote: RemoteFolder, workdir: Path, *, after: Place | None = None) -> Path | None:
    """Download the newest valid checkpoint, the best checkpoints and the logs. Return the newest checkpoint's folder, or None.

    If `after` is given, only checkpoints that are later than `after` are considered. Every checkpoint is downloaded to a hidden
    folder and verified there. The newest checkpoint becomes visible last, after the logs. If the process is killed before that,
    the next start restores the run again.
    """
    downloaded = _newest(remote, workdir, after)
    if downloaded is None:
        return None
    name, staging = downloaded
    target = checkpoints(workdir) / name
    try:
        for best, _ in _best(remote, workdir, except_for=name):
            _download_best(remote, workdir, best)
        _download_logs(remote, workdir)
        if disk.is_folder(target):  # the downloaded checkpoint replaces a local folder of the same name
            disk.rename(target, target.with_name(disk.hidden("deleting", name)))
        disk.rename(staging, target)
        disk.sync_folder(target.parent)
    except BaseException:
        discard(staging)
        raise
    return target


def _newest(remote: RemoteFolder, workdir: Path, after: Place | None) -> tuple[str, Path] | None:
    for place, name in reversed(offered(remote)):
        if after is not None and place <= after:
            return None
        try:
            found = remote_manifest(remote, name)
            if found is None or found[0].is_of_exception:
                continue
            return name, _download(remote, workdir, name, *found)
        except (DamagedCheckpoint, FileNotFoundError) as error:
            logger.warning("%s/%s/%s is skipped: %s", remote.url, CHECKPOINTS, name, error)
    return None


def _best(remote: RemoteFolder, workdir: Path, *, except_for: str) -> Iterator[tuple[str, Manifest]]:
    """For each best-… tag, yield the newest checkpoint with this tag, unless the checkpoint is already downloaded."""
    seen: set[str] = set()
    for _, name in reversed(offered(remote)):
        try:
            found = remote_manifest(remote, name)
        except (DamagedCheckpoint, CannotResume):
            continue
        tags = {tag for tag in found[0].tags if tag.startswith(BEST)} - seen if found is not None else set()
        seen |= tags
        if found is not None and tags and name != except_for and not disk.is_folder(checkpoints(workdir) / name):
            yield name, found[0]


def _download_best(remote: RemoteFolder, workdir: Path, name: str) -> None:
    try:
        found = remote_manifest(remote, name)
        if found is not None:
            disk.rename(_download(remote, workdir, name, *found), checkpoints(workdir) / name)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        logger.warning("%s/%s/%s is skipped: %s", remote.url, CHECKPOINTS, name, error)


def _download(remote: RemoteFolder, workdir: Path, name: str, manifest: Manifest, data: bytes) -> Path:
    """Download a checkpoint to a hidden folder, verify it, and return the folder."""
    disk.make_folder(checkpoints(workdir))
    staging = new_staging(checkpoints(workdir) / name)
    disk.make_new_folder(staging)
    try:
        for file in manifest.files:
            remote.download(f"{CHECKPOINTS}/{name}/{file}", staging / file)
            disk.sync_file(staging / file)
        disk.write(staging / MANIFEST, data)
        verified(staging)
        disk.sync_folder(staging)
    except BaseException:
        discard(staging)
        raise
    return staging


def _download_logs(remote: RemoteFolder, workdir: Path) -> None:
    for path in remote.sizes():
        if is_log(path):
            file = workdir / path
            os.makedirs(file.parent, exist_ok=True)
            with disk.replacing(file) as new:
                remote.download(path, new)
