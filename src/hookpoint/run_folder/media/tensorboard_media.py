"""A run's images and histograms, from the event files that TFEventWriter writes."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hookpoint.core.errors import HookpointError
from hookpoint.run_folder._plain_file import open_plain

FOLDER, FILES = "tensorboard", "events.out.tfevents.*"
PNG = b"\x89PNG\r\n\x1a\n"
HEAD = struct.Struct("<Q4x")  # a record's length, followed by a checksum of the length
TAIL_BYTES = 4  # a checksum of the record, after its data
MAX_RECORD_BYTES = 64 * 2**20
MAX_BYTES = 2**30  # limit for all files together


class NoTensorBoard(HookpointError, ImportError):
    """Raised if tensorboard is not installed."""


@dataclass(frozen=True, slots=True)
class Medium:
    """An image or a histogram: its name, step and time, and the file and offset of its record."""

    kind: str
    name: str
    step: int
    time: float
    path: Path
    offset: int


def media_of(run_folder: Path) -> list[Medium]:
    """Return a run's images and histograms, oldest first. Reads all event files, up to 1 GiB.

    Raises NoTensorBoard if tensorboard is not installed.
    """
    found: list[Medium] = []
    left = MAX_BYTES
    for path in sorted((run_folder / FOLDER).glob(FILES)):
        try:
            with open_plain(path) as file:
                found += [medium for offset, event in _events(file, left) for medium in _media(event, path, offset)]
                left -= os.fstat(file.fileno()).st_size
        except OSError:
            continue
    return found


def image_of(medium: Medium) -> bytes | None:
    """Return an image as PNG, or None if it is in another format."""
    value = _value(medium)
    data = b"" if value is None else bytes(value.image.encoded_image_string)
    return data if data.startswith(PNG) else None


def histogram_of(medium: Medium) -> dict[str, Any] | None:
    """Return a histogram's counts and the upper limits of its bins."""
    value = _value(medium)
    if value is None:
        return None
    histogram = value.histo
    facts = {"step": medium.step, "low": histogram.min, "high": histogram.max, "count": histogram.num}
    return {**facts, "limits": list(histogram.bucket_limit), "counts": list(histogram.bucket)}


def _media(event: Any, path: Path, offset: int) -> Iterator[Medium]:
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind in ("image", "histo"):
            name = "histogram" if kind == "histo" else kind
            yield Medium(name, value.tag, event.step, event.wall_time, path, offset)


def _value(medium: Medium) -> Any:
    try:
        with open_plain(medium.path) as file:
            file.seek(medium.offset)
            _, event = next(_events(file, MAX_RECORD_BYTES), (0, None))
    except OSError:
        return None
    return None if event is None else next((one for one in event.summary.value if one.tag == medium.name), None)


def _events(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, Any]]:
    """Yield the events from the current position, with their offsets. Stop at an incomplete or invalid event."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        message = "images and histograms need tensorboard: pip install 'hookpoint[tensorboard]'"
        raise NoTensorBoard(message) from None
    offset = file.tell()
    end = offset + max_bytes
    while offset < end and len(head := file.read(HEAD.size)) == HEAD.size:
        (length,) = HEAD.unpack(head)
        if length > MAX_RECORD_BYTES or len(data := file.read(length)) < length:
            return
        try:
            yield offset, Event.FromString(data)
        except DecodeError:
            return
        offset += HEAD.size + length + TAIL_BYTES
        file.seek(offset)
