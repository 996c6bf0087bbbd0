"""A run's images and histograms, from the event files that TFEventWriter writes."""

from __future__ import annotations

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


def event_files_of(run_folder: Path) -> list[Path]:
    """Return a run's event files, oldest first."""
    return sorted((run_folder / FOLDER).glob(FILES))


def media_in(file: BinaryIO, path: Path, max_bytes: int) -> tuple[list[Medium], int]:
    """Read an event file from its current position. Return the images and histograms, and the offset after the last event."""
    found: list[Medium] = []
    end = file.tell()
    for offset, event, end in _events(file, max_bytes):  # noqa: B007 - the last end is returned
        found += _media(event, path, offset)
    return found, end


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
            _, event, _ = next(_events(file, MAX_RECORD_BYTES), (0, None, 0))
    except OSError:
        return None
    return None if event is None else next((one for one in event.summary.value if one.tag == medium.name), None)


def _events(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, Any, int]]:
    """Read an event file from its current position, and yield the events. Stop at an incomplete or invalid event.

    Each item is a tuple: the offset at which the event begins, the event, and the offset at which it ends.
    """
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
            event = Event.FromString(data)
        except DecodeError:
            return
        after = offset + HEAD.size + length + TAIL_BYTES
        yield offset, event, after
        offset = after
        file.seek(offset)
