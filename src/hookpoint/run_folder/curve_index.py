"""Curve index: a cache file that stores a CurveReader's state, so that a long file is read only once."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hookpoint.plots.series import POINTS, SUMMARIES, Series
from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.curve_reader import CurveReader

MAGIC = b"hookpoint curves 1\n"
MAX_BYTES = 2**28
MAX_FILES = 1_000  # if there are more indexes, the oldest are deleted
ARRAYS = {**POINTS, **SUMMARIES}


def default_cache() -> Path:
    """Return the folder for indexes: hookpoint/curves in $XDG_CACHE_HOME or, by default, in ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hookpoint" / "curves"


def index_path(cache: Path, path: str | os.PathLike[str]) -> Path:
    """Return the path of the index for a file."""
    return cache / f"{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]}.index"


def save_index(reader: CurveReader, target: Path) -> None:
    """Write a reader's state to an index, atomically. Raises OSError if this fails."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            checksum = 0
            for part in _chunks(reader):
                file.write(part)
                checksum = zlib.crc32(part, checksum)
            file.write(checksum.to_bytes(4, "little"))
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)


def load_index(reader: CurveReader, source: Path) -> bool:
    """Restore a reader from an index, so that it continues where the index ends. Return False if there is no valid index."""
    try:
        with open_plain(source) as file:
            data = file.read(MAX_BYTES)
        header, curves = _parsed(data)
        reader.restore(header, curves)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return False
    return True


def prune(cache: Path, keep: int = MAX_FILES) -> None:
    """Delete old indexes, so that only the newest `keep` indexes remain."""
    with suppress(OSError):
        files = sorted(cache.glob("*.index"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[keep:]:
            path.unlink(missing_ok=True)


def _chunks(reader: CurveReader) -> Iterator[bytes]:
    states = [series.state() for series in reader.curves.values()]
    curves = [{key: len(value) if key in ARRAYS else value for key, value in state.items()} for state in states]
    header = {"path": reader.path, "byteorder": sys.byteorder, **reader.state(), "curves": curves}
    yield MAGIC + json.dumps(header).encode() + b"\n"
    for state in states:
        yield from (state[name].tobytes() for name in ARRAYS)


def _parsed(data: bytes) -> tuple[dict[str, Any], list[Series]]:
    """Return the header and the series of an index. Raises ValueError, KeyError or TypeError if the file is not an index."""
    if not data.startswith(MAGIC) or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise ValueError("the index is damaged")
    begin = data.index(b"\n", len(MAGIC)) + 1
    header = json.loads(data[len(MAGIC) : begin])
    if header["byteorder"] != sys.byteorder:
        raise ValueError("the index is from another machine")
    curves = []
    for facts in header["curves"]:
        state = dict(facts)
        for name, kind in ARRAYS.items():
            values: array[Any] = array(kind)
            end = begin + facts[name] * values.itemsize
            values.frombytes(data[begin:end])
            if len(values) != facts[name]:
                raise ValueError("the index is incomplete")
            state[name], begin = values, end
        curves.append(Series.restored(state))
    return header, curves
