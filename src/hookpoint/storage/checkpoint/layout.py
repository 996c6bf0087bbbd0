"""Layout: the names of files and folders in a workdir.

    checkpoints/step-00001200/    a checkpoint; step-00001200-2/ is the second one at the same step
    checkpoints/best-loss/        hard links to the newest checkpoint with the tag best-loss
    checkpoints/last              a symbolic link to the newest checkpoint, for users only; hookpoint does not read it
    checkpoints/07-0.123          a symbolic link to a checkpoint, with a name from a template
    checkpoints/damaged-step-…/   a damaged checkpoint, kept for inspection
    checkpoints/.staging-…        a folder being written
    checkpoints/.deleting-…       a folder being deleted
    tensor-dumps/                 tensors and images that callbacks write
    landscape/                    weights that LossLandscape collects, and its result
    .control/journal.jsonl        commands sent to the run, which a resumed run replays
    previous/001/                 an earlier run

Folders left behind by a killed process are removed at the next start. The newest checkpoint is the one with the highest step
and, at this step, the highest number. Timestamps do not matter.
"""

from __future__ import annotations

import hashlib
import re
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

CHECKPOINTS = "checkpoints"
LAST = "last"
PREVIOUS = "previous"
BEST = "best-"
DAMAGED = "damaged-"
MANIFEST, WEIGHTS = "manifest.json", "model.safetensors"
SHARDS, SHARD = ".metadata", ".distcp"  # the index of sharded tensors, and the suffix of their files
TENSOR_DUMPS = "tensor-dumps"
LANDSCAPE, LANDSCAPE_FILE, LANDSCAPE_PICTURE = "landscape", "landscape.json", "landscape.png"
# Files with the callback state after the last epoch, and after the epoch before it. They are used with trainers whose own
# checkpoints cannot contain callback state.
HOST_STATE, HOST_STATE_BEFORE = "host.state", "host-before.state"
JOURNAL = ".control/journal.jsonl"  # the commands sent to the run
SCALARS, EVENTS = "scalars.jsonl", "events.jsonl"
# A run's files and folders, in the order in which they are moved to previous/.
LOGS = ("run.json", SCALARS, EVENTS, "tensorboard")
RUN_FILES = (
    *(CHECKPOINTS, HOST_STATE, HOST_STATE_BEFORE, JOURNAL, *LOGS),
    *(TENSOR_DUMPS, LANDSCAPE, "curves.png", LANDSCAPE_PICTURE),
)

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SLASH = "--"
HASH_CHARACTERS = 12
HASHED = re.compile(rf"-[0-9a-f]{{{HASH_CHARACTERS}}}\Z")
_STEP = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_LEFTOVER = re.compile(r"\.(?:staging|deleting|probe)-.*-[0-9a-f]{16}", re.DOTALL)


class Place(NamedTuple):
    """A checkpoint's step, and its number among the checkpoints at this step. Later checkpoints compare greater."""

    step: int
    number: int = 1

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}" + (f"-{self.number}" if self.number > 1 else "")

    @classmethod
    def of(cls, name: str) -> Place | None:
        """Parse a checkpoint folder's name. Return None for any other name."""
        match = _STEP.fullmatch(name)
        place = cls(int(match[1]), int(match[2] or 1)) if match else None
        return place if place and place.name == name else None


def checkpoints(workdir: Path) -> Path:
    return workdir / CHECKPOINTS


def workdir_of(path: Path) -> Path:
    """Return the workdir for a path: the path itself, or its parent if the path is the checkpoints folder."""
    return path.parent if path.name == CHECKPOINTS else path


def next_place(names: list[str], step: int) -> Place:
    """Return the `Place` of a new checkpoint at a step. Its number is one more than the highest number at this step."""
    numbers = [place.number for name in names if (place := Place.of(name)) is not None and place.step == step]
    return Place(step, max(numbers, default=0) + 1)


def is_of_checkpoints(name: str) -> bool:
    """Return whether hookpoint itself uses this name in the checkpoints folder."""
    return Place.of(name) is not None or name == LAST or name.startswith((BEST, DAMAGED))


def is_leftover(name: str) -> bool:
    """Return whether this is the name of a half-written or half-deleted folder that a killed run left behind."""
    return _LEFTOVER.fullmatch(name) is not None


def is_being_deleted(name: str) -> bool:
    return is_leftover(name) and name.startswith(".deleting-")


def damaged_name(name: str, names: list[str]) -> str:
    """Return an unused name for a damaged checkpoint."""
    candidates = chain([DAMAGED + name], (f"{DAMAGED}{name}.{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in names)


def next_previous(names: list[str]) -> str:
    """Return the next unused folder name in previous/."""
    return f"{max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1:03d}"


def best_name(tag: str) -> str:
    """Return the folder name for a best-… tag. Slashes become `--`, and a hash is added if the tag already contains `--`.

    >>> best_name("best-val_loss"), best_name("best-val/loss")
    ('best-val_loss', 'best-val--loss')
    """
    readable = tag.replace("/", SLASH)
    is_plain = SLASH not in tag and "/-" not in tag and "-/" not in tag
    return safe_name(readable) if is_plain and SAFE.fullmatch(readable) else hashed_name(tag)


def safe_name(name: str) -> str:
    """Return a unique file name: the name itself if it is safe, otherwise a readable version of the name with a hash.

    Safe characters are letters, digits and `._-`. Other characters become `-`.

    >>> safe_name("best-val-loss")
    'best-val-loss'
    >>> safe_name("best-val/loss")
    'best-val-loss-7cd2be30730b'
    """
    return name if SAFE.fullmatch(name) and not HASHED.search(name) else hashed_name(name)


def link_name(name: str) -> str:
    """Return a safe name for a link to a checkpoint. It never equals a name that hookpoint itself uses in the folder.

    >>> link_name("07-0.123"), link_name("best-7")
    ('07-0.123', 'x-best-7')
    """
    safe = safe_name(name)
    return f"x-{safe}"[:128] if is_of_checkpoints(safe) else safe


def is_link_name(name: str) -> bool:
    return SAFE.fullmatch(name) is not None and not is_of_checkpoints(name)


def hashed_name(name: str) -> str:
    """Return a safe version of a name, with a hash that makes it unique."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", name)[: 127 - HASH_CHARACTERS]
    return f"{cleaned if SAFE.match(cleaned) else f'x{cleaned[1:]}'}-{digest}"
