"""Catalog: the checkpoints that are in a workdir, and which of them may go."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hookpoint.core.checkpoint.store import Keep, Kept
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint.checkpoint_folder import read_manifest
from hookpoint.storage.checkpoint.layout import BEST, Place, checkpoints
from hookpoint.storage.checkpoint.manifest import Manifest
from hookpoint.storage.disk import disk

logger = logging.getLogger("hookpoint")

OWN_TAGS = frozenset({"end", "signal", "stop"})  # of checkpoints that are made to go on from, not to be kept
ALWAYS_KEPT = 2  # or one, where a saver has a limit of its own


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint by its name, and its manifest, or None if there is none that makes sense."""

    path: Path
    place: Place
    manifest: Manifest | None


def places(workdir: Path) -> list[tuple[Place, Path]]:
    """Return every checkpoint folder of a workdir, the oldest first."""
    folder = checkpoints(workdir)
    found = [(place, folder / name) for name in disk.names(folder) if (place := Place.of(name)) is not None]
    return sorted((place, path) for place, path in found if disk.is_folder(path))


def entries(workdir: Path) -> list[Entry]:
    """Return every checkpoint of a workdir with its manifest, the oldest first. Their files are not verified."""
    return [Entry(path, place, _manifest(path)) for place, path in places(workdir)]


def best_folders(workdir: Path) -> Iterator[Path]:
    """Yield the best-… folders of a workdir."""
    folder = checkpoints(workdir)
    for name in disk.names(folder):
        if name.startswith(BEST) and disk.is_folder(folder / name):
            yield folder / name


def to_delete(found: Sequence[Entry], rules: Mapping[str, Keep], limits: Collection[str] = ()) -> list[Entry]:
    """Return the checkpoints that nobody wants any more, the oldest first.

    One may go if each of its tags is one of our own or has a rule that does not keep it. One with a tag without a rule stays
    for ever, and so does one without tags or without a manifest. The rules of the tags in `limits` count checkpoints with one
    of our own tags too. The two newest to go on from are never deleted; where there are limits, the newest one is not.
    """
    good = [(entry, entry.manifest) for entry in found if entry.manifest is not None]
    newest = [entry for entry, manifest in good if not manifest.is_of_exception][-1 if limits else -ALWAYS_KEPT :]

    def counts(manifest: Manifest, tag: str) -> bool:
        return tag in manifest.tags or (tag in limits and not OWN_TAGS.isdisjoint(manifest.tags))

    wanted = {
        tag: {one.name for one in rule([_kept(entry.path, made, tag) for entry, made in good if counts(made, tag)])}
        for tag, rule in rules.items()
    }
    within_limits = {name for tag in limits for name in wanted.get(tag, ())}

    def may_go(name: str, tag: str) -> bool:
        return name not in wanted[tag] if tag in wanted else tag in OWN_TAGS and name not in within_limits

    return [
        entry
        for entry, manifest in good
        if entry not in newest and manifest.tags and all(may_go(entry.path.name, tag) for tag in manifest.tags)
    ]


def _kept(path: Path, manifest: Manifest, tag: str) -> Kept:
    measured = manifest.measured.get(tag)
    moment = manifest.moment if measured is None else Moment.of(measured)
    return Kept(path.name, manifest.step, manifest.elapsed, moment)


def _manifest(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except (DamagedCheckpoint, CannotResume):
        return None
