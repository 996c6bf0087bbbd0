"""Manifest: the description of a checkpoint, with the size and the SHA-256 digest of each file.

`manifest.json` is written last. Its text is canonical and includes a digest of itself, so any changed byte is detected.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from hookpoint._version import __version__
from hookpoint.core.errors import CannotResume, DamagedCheckpoint
from hookpoint.core.schedule.moment import Moment
from hookpoint.storage.checkpoint._encoding import for_json, restored
from hookpoint.storage.checkpoint.layout import MANIFEST, is_link_name
from hookpoint.storage.checkpoint.tree import copied

FORMAT = 1  # incremented when older releases can no longer read the files
ENCRYPTED = 2  # the format of encrypted checkpoints, which older releases cannot read
FULL, EXCEPTION = "full", "exception"  # the kinds of checkpoints; "exception" is also a tag
LIBRARIES = ("numpy", "safetensors", "torch")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}|\.metadata")  # torch writes .metadata and files whose names start with _
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class File:
    """The expected size and digest of a file."""

    size: int
    sha256: str


def _versions() -> dict[str, str]:
    """Return the versions of hookpoint, Python and the libraries in use."""
    loaded = {name: str(sys.modules[name].__version__) for name in LIBRARIES if name in sys.modules}
    return {"hookpoint": __version__, "python": platform.python_version(), **loaded}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a checkpoint.

    `elapsed` is the training time in seconds. `created` is for display only. `measured` maps a tag to the measurement that the
    checkpoint was saved for: metric, mode, value and time of measurement. `info` contains the values that a saver's
    `append_info` argument requests. `links` contains the names of links to the folder. If the files are encrypted, `encryption`
    contains the cipher and the fingerprint of the key.
    """

    step: int
    elapsed: float
    tags: tuple[str, ...]
    clocks: Mapping[str, Any]
    identity: Mapping[str, Any]
    files: Mapping[str, File]
    measured: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    encryption: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=_versions)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def moment(self) -> Moment:
        """The moment at which the checkpoint was saved."""
        return Moment.of({**self.clocks, "step": self.step})

    @property
    def is_of_exception(self) -> bool:
        """Whether the checkpoint was saved after an exception, for inspection only."""
        return EXCEPTION in self.tags

    def encoded(self) -> bytes:
        """Return the content of the manifest file."""
        content = {name: getattr(self, name) for name in ("step", "elapsed", "tags", "versions", "created")}
        content |= {"format": ENCRYPTED if self.encryption else FORMAT, "kind": EXCEPTION if self.is_of_exception else FULL}
        content |= {"epoch": self.moment.epoch, "iteration": self.moment.iteration}
        content["files"] = {name: asdict(file) for name, file in self.files.items()}
        content |= {name: for_json(copied(dict(getattr(self, name)))) for name in ("measured", "clocks", "identity")}
        content |= {"info": for_json(copied(dict(self.info)))} if self.info else {}
        content |= {"links": self.links} if self.links else {}
        content |= {"encryption": dict(self.encryption)} if self.encryption else {}
        return _canonical({**content, "digest": _digest(content)})


def parse_manifest(data: bytes, folder: str) -> Manifest:
    """Parse a folder's manifest.

    Raises DamagedCheckpoint if the manifest is invalid, and CannotResume if a later release of hookpoint wrote it.
    """
    if not _is_intact(data):
        raise DamagedCheckpoint(f"the {MANIFEST} of {folder} was changed.")
    content = json.loads(data)
    if content.get("format") not in (FORMAT, ENCRYPTED):
        raise CannotResume(
            f"{folder} has format {content.get('format')}; this release of hookpoint reads format {FORMAT}.",
            install=f"the release that wrote it: {content.get('versions')}",
        )
    try:
        return _from_content(content)
    except Exception as error:  # the digest matches, but the content may have been written by hand
        raise DamagedCheckpoint(f"the {MANIFEST} of {folder} is invalid: {error!r}.") from error


@lru_cache(maxsize=256)  # cached, because each save reads the manifests of all checkpoints
def _is_intact(data: bytes) -> bool:
    try:
        content = json.loads(data)
        digest = content["digest"]
        return data == _canonical(content) and digest == _sha256(_without_digest(data, digest))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _from_content(content: dict[str, Any]) -> Manifest:
    files = {name: File(int(file["size"]), str(file["sha256"])) for name, file in content["files"].items()}
    for name, file in files.items():
        if not FILE.fullmatch(name) or name == MANIFEST or not SHA256.fullmatch(file.sha256):
            raise ValueError(f"{name} is not a checkpoint file")
    measured = restored(content.get("measured", {})).items()
    return Manifest(
        step=int(content["step"]),
        elapsed=float(content["elapsed"]),
        tags=tuple(map(str, content["tags"])),
        clocks=restored(content["clocks"]),
        identity=restored(content["identity"]),
        versions=dict(content["versions"]),
        created=str(content["created"]),
        files=files,
        info=restored(content.get("info", {})),
        encryption={str(name): str(value) for name, value in content.get("encryption", {}).items()},
        links=tuple(name for name in map(str, content.get("links", ())) if is_link_name(name)),
        measured={str(tag): {**value, "value": float(value["value"]), "step": int(value["step"])} for tag, value in measured},
    )


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _digest(content: dict[str, Any]) -> str:
    return _sha256(_canonical(content))


def _without_digest(data: bytes, digest: Any) -> bytes:
    """Remove the digest, which is on its own line, from canonical data. This is faster than encoding the data again."""
    return data.replace(f'\n "digest": {json.dumps(digest)},'.encode(), b"", 1)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
