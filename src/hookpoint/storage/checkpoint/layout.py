"""Layout: how the things in a workdir are called.

    checkpoints/step-00001200/     a checkpoint; step-00001200-2/ is a second one of the same step
    checkpoints/best-loss/         the files of the newest checkpoint with the tag best-loss, once more
    checkpoints/last               a symbolic link to the newest checkpoint, for people; nothing here reads it
    checkpoints/damaged-step-…/    what was found damaged, kept for whoever wants to look into it
    checkpoints/.staging-…         what is being made, checkpoints/.deleting-… what is being deleted: leftovers are removed
    tensor-dumps/                  tensors and images that callbacks were asked to write
    previous/001/                  an earlier run that was moved aside

The newest checkpoint is that of the highest step and number. Clocks of machines and file systems have no say in it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

CHECKPOINTS = "checkpoints"
LAST = "last"
PREVIOUS = "previous"
BEST = "best-"
DAMAGED = "damaged-"
MANIFEST = "manifest.json"
SHARDS, SHARD = ".metadata", ".distcp"  # where which part of a sharded tensor is, and how the files of parts end
TENSOR_DUMPS = "tensor-dumps"
OF_A_RUN = (
    "checkpoints",
    "run.json",
    "scalars.jsonl",
    "events.jsonl",
    "tensorboard",
    TENSOR_DUMPS,
    "curves.png",
)  # as they are moved aside

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SLASH = "--"
HASH_LETTERS = 12
LIKE_OURS = re.compile(rf"-[0-9a-f]{{{HASH_LETTERS}}}\Z")
_STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_LEFTOVER = re.compile(r"\.(?:staging|deleting|probe)-.*-[0-9a-f]{16}", re.DOTALL)


class Place(NamedTuple):
    """Which checkpoint it is: that of a step, and the how-manieth of this step. Later ones are greater."""

    step: int
    number: int = 1

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}" + (f"-{self.number}" if self.number > 1 else "")

    @classmethod
    def of(cls, name: str) -> Place | None:
        """Return the place that a name stands for, or None if it is none of ours."""
        found = _STEP.fullmatch(name)
        if found is None:
            return None
        place = cls(int(found[1]), int(found[2] or 1))
        return place if place.name == name else None


def checkpoints(workdir: Path) -> Path:
    return workdir / CHECKPOINTS


def next_place(names: list[str], step: int) -> Place:
    """Return the place of a new checkpoint among those with these names: behind all others of its step."""
    taken = [place.number for name in names if (place := Place.of(name)) is not None and place.step == step]
    return Place(step, max(taken, default=0) + 1)


def is_of_checkpoints(name: str) -> bool:
    """Say whether something of this name among the checkpoints is ours."""
    return Place.of(name) is not None or name == LAST or name.startswith((BEST, DAMAGED))


def is_leftover(name: str) -> bool:
    """Say whether a kill left this behind: something half made or half deleted, of ours."""
    return _LEFTOVER.fullmatch(name) is not None


def is_being_deleted(name: str) -> bool:
    return is_leftover(name) and name.startswith(".deleting-")


def damaged_name(name: str, names: list[str]) -> str:
    """Return what to call a damaged checkpoint among these names."""
    wanted = DAMAGED + name
    number = 2
    while wanted in names:
        wanted, number = f"{DAMAGED}{name}.{number}", number + 1
    return wanted


def next_previous(names: list[str]) -> str:
    """Return what to call the earlier run that is moved aside next."""
    return f"{max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1:03d}"


def best_name(tag: str) -> str:
    """Return the folder of a best-… tag: the tag, a slash in it as `--`; a tag that has `--` itself is told by a hash.

    >>> best_name("best-val_loss"), best_name("best-val/loss")
    ('best-val_loss', 'best-val--loss')
    """
    readable = tag.replace("/", SLASH)
    is_plain = SLASH not in tag and "/-" not in tag and "-/" not in tag
    return safe_name(readable) if is_plain and SAFE.fullmatch(readable) else hashed_name(tag)


def safe_name(name: str) -> str:
    """Return a name for a file or folder: the same one where it can be, else one that no other name becomes.

    Names of users are never paths: what is not a letter, a digit or one of `._-` becomes `-`, and a hash follows.

    >>> safe_name("best-val-loss")
    'best-val-loss'
    >>> safe_name("best-val/loss")
    'best-val-loss-7cd2be30730b'
    """
    return name if SAFE.fullmatch(name) and not LIKE_OURS.search(name) else hashed_name(name)


def hashed_name(name: str) -> str:
    """Return a name with a hash, which no other name becomes."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_LETTERS]
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", name)[: 127 - HASH_LETTERS]
    return f"{cleaned if SAFE.match(cleaned) else f'x{cleaned[1:]}'}-{digest}"
