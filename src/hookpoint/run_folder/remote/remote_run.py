"""RemoteRun: read a run from its mirror in remote storage."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath

from hookpoint.run_folder.command_error import REFUSED, CommandError
from hookpoint.run_folder.formatting import moment_of, shown
from hookpoint.run_folder.run_folder import EVENTS, KILLED, RUNNING, SCALARS, RunFolder
from hookpoint.run_folder.run_scanner import LEVELS
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, LANDSCAPE, LANDSCAPE_FILE, MANIFEST, PREVIOUS, Place
from hookpoint.storage.remote.mirrored import HEARTBEAT
from hookpoint.storage.remote.remote_folder import RemoteFolder
from hookpoint.storage.run_file import NAME

MAX_MISSED = 5  # number of missed updates until a run counts as killed; more than 1, because an upload may take a while
MIN_PATIENCE_SECONDS = 120.0
TAIL_BYTES = 256 * 1024  # when runs are listed, at most this many bytes are downloaded from the end of each log


class RemoteRun(RunFolder):
    """A run in remote storage.

    Its run.json, manifests and logs are downloaded. Most other files are not downloaded: in the local copy,
    they are sparse files of the same size.

    The local copy is deleted when this object is garbage-collected. The run counts as "running" as long as its
    mirror is updated.
    """

    is_remote = True

    def __init__(self, path: Path, url: str) -> None:
        super().__init__(path)
        self._url = url
        weakref.finalize(self, shutil.rmtree, path.parent, ignore_errors=True)

    @property
    def where(self) -> str:
        return self._url

    @cached_property
    def status(self) -> str:
        status = super().status
        return RUNNING if status == KILLED and self._is_updated() else status

    def _is_updated(self) -> bool:
        try:
            facts = json.loads((self.path / HEARTBEAT).read_bytes())
            updated = moment_of(facts["updated"])
            patience = max(MAX_MISSED * float(facts["every_seconds"]), MIN_PATIENCE_SECONDS)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return False
        return updated is not None and not facts.get("ended") and time.time() - updated.timestamp() < patience


def remote_run(url: str) -> RemoteRun:
    """Download the run.json, manifests and logs of the run at a URL."""
    remote = _open(url)
    sizes = _sizes(remote)
    run = _snapshot(remote, "", sizes, url)
    if not run.is_run:
        inside = _runs_in(sizes, LEVELS)[:3]
        hint = f"; it contains {', '.join(map(shown, inside))}" if inside else ""
        raise CommandError(
            f"there is no run in {shown(remote.url)}: the folder has no run.json, scalars.jsonl or checkpoints{hint}"
        )
    return run


def remote_runs(url: str, *, levels: int = LEVELS) -> Iterator[tuple[RemoteRun, str]]:
    """Yield each run at or below a URL, together with its path relative to the URL. Only the end of each log is downloaded."""
    remote = _open(url)
    sizes = _sizes(remote)
    for path in _runs_in(sizes, levels):
        start = f"{path}/" if path else ""
        inside = {name.removeprefix(start): size for name, size in sizes.items() if name.startswith(start)}
        yield _snapshot(remote, start, inside, f"{url.rstrip('/')}/{path}".rstrip("/"), tail_bytes=TAIL_BYTES), path or "."


def _open(url: str) -> RemoteFolder:
    return RemoteFolder(url)


def _sizes(remote: RemoteFolder) -> dict[str, int]:
    try:
        sizes = remote.sizes()
    except Exception as error:  # each storage client raises its own error classes
        text = remote.without_secrets(f"{type(error).__name__}: {error}")
        raise CommandError(f"{shown(remote.url)} cannot be read: {shown(text)}", REFUSED) from None
    if not sizes:
        raise CommandError(f"there is nothing in {shown(remote.url)}", REFUSED)
    return sizes


def _runs_in(sizes: Mapping[str, int], levels: int) -> list[str]:
    """Return the paths of the folders that contain a run.json."""
    folders = [PurePosixPath(path).parent for path in sizes if PurePosixPath(path).name == NAME]
    return sorted(
        "" if str(folder) == "." else str(folder)
        for folder in folders
        if len(folder.parts) <= levels and PREVIOUS not in folder.parts and CHECKPOINTS not in folder.parts
    )


def _snapshot(remote: RemoteFolder, start: str, sizes: Mapping[str, int], url: str, tail_bytes: int | None = None) -> RemoteRun:
    """Download a run's run.json, manifests and logs.

    Most other files become sparse files of the same size, which take no disk space.
    """
    path = Path(tempfile.mkdtemp(prefix="hookpoint-")) / (PurePosixPath(url.partition("://")[2]).name or "run")
    run = RemoteRun(path, remote.without_secrets(url))  # deletes the folder when it is garbage-collected
    path.mkdir()
    for name, size in sizes.items():
        parts = PurePosixPath(name).parts
        is_manifest = len(parts) == 3 and parts[0] == CHECKPOINTS and parts[2] == MANIFEST
        if parts[0] == CHECKPOINTS and not (len(parts) == 3 and f"{CHECKPOINTS}/{parts[1]}/{MANIFEST}" in sizes):
            continue  # the upload of this checkpoint is incomplete
        file = path.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        if (is_manifest and Place.of(parts[1]) is not None) or name in (NAME, HEARTBEAT):
            file.write_bytes(remote.read(start + name) or b"")
        elif name == f"{LANDSCAPE}/{LANDSCAPE_FILE}" and tail_bytes is None:
            remote.download(start + name, file)
        elif name in (SCALARS, EVENTS):
            if tail_bytes is None or size <= tail_bytes:
                remote.download(start + name, file)
            else:
                file.write_bytes(remote.read_end(start + name, tail_bytes))
        else:
            with open(file, "wb") as placeholder:
                os.truncate(placeholder.fileno(), size)
    return run
