"""Layout: the names in a workdir.

    checkpoints/step-00001200/    a checkpoint; step-00001200-2/ is the second one at the same step
    checkpoints/best-loss/        hard links to the newest checkpoint with the tag best-loss
    checkpoints/last              a symbolic link to the newest checkpoint, for users; never read here
    checkpoints/07-0.123          a symbolic link to a checkpoint, named by a template
    checkpoints/damaged-step-…/   a damaged checkpoint, kept for inspection
    checkpoints/.staging-…        a folder being written
    checkpoints/.deleting-…       a folder being deleted
    tensor-dumps/                 tensors and images that callbacks write
    landscape/                    weights that LossLandscape collects, and its result
    .control/journal.jsonl        commands to the run, which a resume replays
    previous/001/                 an earlier run

Folders left behind by a kill are removed at the next start. The newest checkpoint is the one with the highest step and number.
Timestamps do not matter.
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
# State of callbacks, for a trainer that cannot store it, and the one from the epoch before.
HOST_STATE, HOST_STATE_BEFORE = "host.state", "host-before.state"
JOURNAL = ".control/journal.jsonl"  # the commands sent to the run
SCALARS, EVENTS = "scalars.jsonl", "events.jsonl"
# The files of a run, in the order in which they are moved to previous/.
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
    """The step of a checkpoint, and its number among checkpoints at the same step. Later checkpoints compare greater."""

    step: int
    number: int = 1

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}" + (f"-{self.number}" if self.number > 1 else "")

    @classmethod
    def of(cls, name: str) -> Place | None:
        """Parse the name of a checkpoint folder. Return None for other names."""
        match = _STEP.fullmatch(name)
        place = cls(int(match[1]), int(match[2] or 1)) if match else None
        return place if place and place.name == name else None


def checkpoints(workdir: Path) -> Path:
    return workdir / CHECKPOINTS


def workdir_of(path: Path) -> Path:
    """Return the workdir: the path itself, or its parent if the path is the checkpoints folder."""
    return path.parent if path.name == CHECKPOINTS else path


def next_place(names: list[str], step: int) -> Place:
    """Return the place of a new checkpoint, after all others at its step."""
    numbers = [place.number for name in names if (place := Place.of(name)) is not None and place.step == step]
    return Place(step, max(numbers, default=0) + 1)


def is_of_checkpoints(name: str) -> bool:
    """Return whether hookpoint creates this name in the checkpoints folder."""
    return Place.of(name) is not None or name == LAST or name.startswith((BEST, DAMAGED))


def is_leftover(name: str) -> bool:
    """Return whether this is a half-written or half-deleted leftover of a killed run."""
    return _LEFTOVER.fullmatch(name) is not None


def is_being_deleted(name: str) -> bool:
    return is_leftover(name) and name.startswith(".deleting-")


def damaged_name(name: str, names: list[str]) -> str:
    """Return a free name for a damaged checkpoint."""
    candidates = chain([DAMAGED + name], (f"{DAMAGED}{name}.{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in names)


def next_previous(names: list[str]) -> str:
    """Return the next free folder name in previous/."""
    return f"{max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1:03d}"


def best_name(tag: str) -> str:
    """Return the folder name for a best-… tag, with `--` for a slash. A tag that contains `--` gets a hash.

    >>> best_name("best-val_loss"), best_name("best-val/loss")
    ('best-val_loss', 'best-val--loss')
    """
    readable = tag.replace("/", SLASH)
    is_plain = SLASH not in tag and "/-" not in tag and "-/" not in tag
    return safe_name(readable) if is_plain and SAFE.fullmatch(readable) else hashed_name(tag)


def safe_name(name: str) -> str:
    """Return a unique file name for a name: the name itself if it is safe, otherwise a readable version of it with a hash.

    Safe characters are letters, digits and `._-`. Others become `-`.

    >>> safe_name("best-val-loss")
    'best-val-loss'
    >>> safe_name("best-val/loss")
    'best-val-loss-7cd2be30730b'
    """
    return name if SAFE.fullmatch(name) and not HASHED.search(name) else hashed_name(name)


def link_name(name: str) -> str:
    """Return a safe name for a link to a checkpoint, different from all other names in the checkpoints folder.

    >>> link_name("07-0.123"), link_name("best-7")
    ('07-0.123', 'x-best-7')
    """
    safe = safe_name(name)
    return f"x-{safe}"[:128] if is_of_checkpoints(safe) else safe


def is_link_name(name: str) -> bool:
    return SAFE.fullmatch(name) is not None and not is_of_checkpoints(name)


def hashed_name(name: str) -> str:
    """Return a safe name, made unique by a hash."""
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", name)[: 127 - HASH_CHARACTERS]
    return f"{cleaned if SAFE.match(cleaned) else f'x{cleaned[1:]}'}-{digest}"
