"""Manifest: what a checkpoint is, and the size and SHA-256 of each of its files.

`manifest.json` is written last. Its text is the only one that its content can have, and it holds its own digest, so that any
byte of it that changes is noticed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hookpoint._version import __version__
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint._encoding import for_json, restored
from hookpoint.storage.checkpoint.layout import MANIFEST
from hookpoint.storage.checkpoint.tree import copied

FORMAT = 1  # it grows when an older release could not read what is written
FULL, EXCEPTION = "full", "exception"
LIBRARIES = ("numpy", "safetensors", "torch")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}|\.metadata")  # the last, and those with _, are torch's own
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    """What a file has to be."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is. `elapsed` is seconds of training, `created` a time for people, `kind` "full" or "exception".

    `measured` has, by tag, the value that it was saved for: metric, mode, value, and the moment it was measured at.
    """

    step: int
    elapsed: float
    tags: tuple[str, ...]
    kind: str
    clocks: Mapping[str, Any]
    identity: Mapping[str, Any]
    versions: Mapping[str, str]
    created: str
    files: Mapping[str, File]
    measured: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def made_now(
        cls,
        *,
        step: int,
        elapsed: float,
        tags: Sequence[str],
        clocks: Any,
        identity: Any,
        files: Mapping[str, File],
        measured: Mapping[str, Any] | None = None,
    ) -> Manifest:
        kind = EXCEPTION if "exception" in tags else FULL
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(step, elapsed, tuple(tags), kind, clocks, identity, versions(), created, files, dict(measured or {}))

    @property
    def moment(self) -> Moment:
        """Where the run stood when it was written."""
        return Moment.of({**self.clocks, "step": self.step})

    @property
    def is_of_exception(self) -> bool:
        """Whether it holds what an exception left, which is for people to look into."""
        return self.kind == EXCEPTION

    def encoded(self) -> bytes:
        """Return the text of the file."""
        content = {
            "format": FORMAT,
            "step": self.step,
            "epoch": self.moment.epoch,
            "iteration": self.moment.iteration,
            "elapsed": self.elapsed,
            "tags": list(self.tags),
            "kind": self.kind,
            "measured": for_json(copied(dict(self.measured))),
            "clocks": for_json(copied(dict(self.clocks))),
            "identity": for_json(copied(dict(self.identity))),
            "versions": dict(self.versions),
            "created": self.created,
            "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()},
        }
        return _canonical({**content, "digest": _digest(content)})


def parsed(data: bytes, of: str) -> Manifest:
    """Return the manifest with this text, or raise DamagedCheckpoint; CannotResume if a later release wrote it."""
    try:
        content = json.loads(data)
        digest = content.pop("digest")
        is_whole = digest == _digest(content) and data == _canonical({**content, "digest": digest})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise DamagedCheckpoint(f"the {MANIFEST} of {of} is not as it was written.")
    if content.get("format") != FORMAT:
        raise CannotResume(
            f"{of} has format {content.get('format')}; this release of hookpoint reads format {FORMAT}.",
            install=f"the release that wrote it: {content.get('versions')}",
        )
    try:
        return _from(content)
    except Exception as error:  # its digest fits, and someone has made it by hand: any of its values may be anything
        raise DamagedCheckpoint(f"the {MANIFEST} of {of} makes no sense: {error!r}.") from error


def versions() -> dict[str, str]:
    """Return the releases of what a checkpoint is made with."""
    loaded = {name: str(sys.modules[name].__version__) for name in LIBRARIES if name in sys.modules}
    return {"hookpoint": __version__, "python": platform.python_version(), **loaded}


def _from(content: dict[str, Any]) -> Manifest:
    files = {name: File(int(one["size"]), str(one["sha256"])) for name, one in content["files"].items()}
    for name, file in files.items():
        if not FILE.fullmatch(name) or name == MANIFEST or not SHA256.fullmatch(file.sha256):
            raise ValueError(f"{name} is no file of a checkpoint")
    return Manifest(
        step=int(content["step"]),
        elapsed=float(content["elapsed"]),
        tags=tuple(map(str, content["tags"])),
        kind=str(content["kind"]),
        clocks=restored(content["clocks"]),
        identity=restored(content["identity"]),
        versions=dict(content["versions"]),
        created=str(content["created"]),
        files=files,
        measured=_measured(content.get("measured", {})),
    )


def _measured(content: Any) -> dict[str, Any]:
    read = restored(content)
    return {str(tag): {**one, "value": float(one["value"]), "step": int(one["step"])} for tag, one in read.items()}


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
