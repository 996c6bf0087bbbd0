"""RemoteFolder: a folder in remote storage, identified by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookpoint.core.errors import BadArgument
from hookpoint.core.text.secrets import MASK, masked

URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?P<rest>.+)", re.DOTALL)
S3 = ("s3", "s3a")
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
SHORTEST_SECRET = 4  # shorter option values are not considered secrets, so they are not masked in messages


def is_url(name: str) -> bool:
    """Return whether a name is a URL such as s3://bucket/runs/mine."""
    return URL.match(name) is not None


class RemoteFolder:
    """A folder in remote storage. Each method makes one or a few requests, and raises OSError if the storage fails.

    `options`, such as `{"endpoint_url": "http://127.0.0.1:9000"}`, are passed to fsspec's file system. In messages,
    option values that are strings of at least four characters are masked. Nothing is cached.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._secrets = [text for text in _texts(options or {}) if len(text) >= SHORTEST_SECRET]
        self.url = self.without_secrets(url)
        scheme = url.partition("://")[0]
        try:
            from fsspec.core import url_to_fs

            self._system, self._root = url_to_fs(url, **{**_DEFAULTS.get(scheme, {}), **(options or {})})
        except ImportError as error:
            package = "fsspec" if error.name == "fsspec" else PACKAGES.get(scheme, scheme)
            extra = "hookpoint[remote]" if scheme in S3 or package == "fsspec" else f"fsspec[{scheme}]"
            raise BadArgument(f"{self.url} needs {package}.", install=f"it with pip install '{extra}'") from error
        except ValueError as error:
            raise BadArgument(f"fsspec cannot use {self.url}: {error}.", give="s3://bucket/runs/mine") from error

    def names(self, path: str = "") -> list[str]:
        """Return the sorted names in a folder, or an empty list if it does not exist."""
        self._system.invalidate_cache()
        try:
            listed = self._system.ls(self._at(path), detail=False)
        except FileNotFoundError:
            return []
        own = self._at(path).rstrip("/")
        names = {entry.rstrip("/").rpartition("/")[2] for entry in listed if entry.rstrip("/") != own}
        return sorted(name for name in names if is_plain(name))

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the sizes of all files in a folder and its subfolders, keyed by path relative to the folder."""
        self._system.invalidate_cache()
        root = self._at(path).rstrip("/")
        try:
            found = self._system.find(root, detail=True)
        except FileNotFoundError:
            return {}
        paths = {name.removeprefix(root).lstrip("/"): entry for name, entry in found.items()}
        return {name: int(entry["size"] or 0) for name, entry in paths.items() if all(map(is_plain, name.split("/")))}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            return bytes(self._system.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def read_end(self, path: str, size: int) -> bytes:
        """Return at most `size` bytes from the end of a file."""
        return bytes(self._system.cat_file(self._at(path), start=-size))

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        self._system.invalidate_cache()
        try:
            return int(self._system.info(self._at(path))["size"])
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        self._make_parent(path)
        self._system.pipe_file(self._at(path), data)

    def upload(self, file: Path, path: str) -> None:
        self._make_parent(path)
        self._system.put_file(os.fspath(file), self._at(path))

    def download(self, path: str, file: Path) -> None:
        self._system.get_file(self._at(path), os.fspath(file))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all of its files. Do nothing if it does not exist."""
        with suppress(FileNotFoundError):
            self._system.rm(self._at(path), recursive=True)

    def without_secrets(self, text: object) -> str:
        """Mask credentials in URLs, and the values of storage options that are strings of at least four characters."""
        clean = masked(str(text))
        for secret in self._secrets:
            clean = clean.replace(secret, MASK)
        return clean

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else str(self._root)

    def _make_parent(self, path: str) -> None:
        # Object stores such as S3 have no folders to create.
        if "file" in _protocols(self._system) or "memory" in _protocols(self._system):
            self._system.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)


# Without these options, fsspec would cache listings, and repeat a failed request for minutes.
_DEFAULTS: dict[str, dict[str, Any]] = {scheme: {"use_listings_cache": False} for scheme in S3}


def is_plain(name: str) -> bool:
    """Return whether a name from a listing is safe to use as a local file name."""
    return bool(name) and name not in (".", "..") and "\0" not in name and "\\" not in name


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _texts(value: Any) -> list[str]:
    """Return all strings in nested options."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []
