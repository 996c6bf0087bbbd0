"""Previews: some records of a long file, at evenly spaced places."""

from __future__ import annotations

import math
import os

from hookpoint.plots.series import Bucket
from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.curve_reader import Key
from hookpoint.run_folder.curve_view import merged
from hookpoint.run_folder.json_records import OWN_KEYS, number_of, records_of

PLACES = 300
PLACE_BYTES = 8_192


def preview_of(
    path: str | os.PathLike[str], *, places: int = PLACES, place_bytes: int = PLACE_BYTES
) -> dict[Key, list[Bucket]]:
    """Return a bucket for each place of a file, for each curve that has values there. Extremes between places are missing.

    Reads at most `places` * `place_bytes` bytes. Raises OSError if the file cannot be read.
    """
    found: dict[Key, list[Bucket]] = {}
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        for place in range(places):
            begin = max(0, size - place_bytes) * place // max(1, places - 1)
            file.seek(begin)
            lines = file.read(place_bytes).split(b"\n")
            for key, buckets in _buckets(lines[1 if begin else 0 : -1], begin).items():
                found.setdefault(key, []).append(merged(buckets))
            if size <= place_bytes:
                break
    return found


def _buckets(lines: list[bytes], begin: int) -> dict[Key, list[Bucket]]:
    found: dict[Key, list[Bucket]] = {}
    for row in records_of(lines):
        if row is None:
            continue
        step, time, at = row["step"], row["time"], row["at"]
        for name, raw in row.items():
            value = None if name in OWN_KEYS else number_of(raw)
            if value is not None:
                number, finite = (value, 1) if math.isfinite(value) else (math.nan, 0)
                bucket = Bucket(step, step, time, number, number, number, finite, 1, begin)
                found.setdefault((name, at), []).append(bucket)
    return found
