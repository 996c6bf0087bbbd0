"""Named links: symbolic links to checkpoints, with names from a saver's template.

These links, like the link `last`, are only for users: hookpoint never reads them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from hookpoint.storage.checkpoint.checkpoint_folder import discard
from hookpoint.storage.checkpoint.layout import Place, checkpoints, is_link_name
from hookpoint.storage.disk import disk
from hookpoint.storage.workdir.catalog import Entry

logger = logging.getLogger("hookpoint")


def create(checkpoint: Path, names: Iterable[str]) -> None:
    """Create a symbolic link to a checkpoint for each name in `names`. An existing link with the same name is replaced."""
    for name in names:
        try:
            disk.point(checkpoint.with_name(name), checkpoint.name)
        except OSError as error:
            logger.warning("%s could not be linked to %s: %s", name, checkpoint, error)


def is_one(path: Path) -> bool:
    """Return whether `create` made this link, that is, whether its target is the name of a checkpoint in the same folder."""
    return is_link_name(path.name) and disk.is_link(path) and Place.of(os.readlink(path)) is not None


def remove_broken(workdir: Path) -> None:
    """Remove links to checkpoints that have been deleted."""
    folder = checkpoints(workdir)
    try:
        names = set(disk.names(folder))
        for path in (folder / name for name in names if is_link_name(name)):
            if is_one(path) and os.readlink(path) not in names:
                discard(path)
    except OSError as error:
        logger.warning("links in %s could not be checked: %s", folder, error)


def heal(workdir: Path, found: Sequence[Entry]) -> None:
    """Remove broken links, and create links that are missing because a process was killed."""
    remove_broken(workdir)
    newest = {name: entry.path for entry in found if entry.manifest is not None for name in entry.manifest.links}
    for name, path in newest.items():
        if not disk.is_link(path.with_name(name)) or os.readlink(path.with_name(name)) != path.name:
            create(path, [name])
