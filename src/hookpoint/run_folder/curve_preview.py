"""Previews: read some records from a long file, at evenly spaced places."""

from __future__ import annotations

import math
import os

from hookpoint.plots.series import Bucket
from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.curve_reader import Key
from hookpoint.run_folder.curve_view import merged
from hookpoint.run_folder.json_records import OWN_KEYS, number_of, tables_of

PLACES = 300
PLACE_BYTES = 8_192


def preview_of(
    path: str | os.PathLike[str], *, places: int = PLACES, place_bytes: int = PLACE_BYTES
) -> dict[Key, list[Bucket]]:
    """Return one bucket per curve and place in the file. Extremes between places are missing.

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
    """Return each curve's buckets: one for each set of records that have the same keys."""
    found: dict[Key, list[Bucket]] = {}
    for columns, _ in tables_of(lines)[0]:
        for at in dict.fromkeys(columns["at"]):
            for name, raw in columns.items():
                if name in OWN_KEYS:
                    continue
                rows = zip(columns["step"], columns["time"], map(number_of, raw), columns["at"], strict=True)
                values = [(step, time, value) for step, time, value, one in rows if value is not None and one == at]
                if values:
                    found.setdefault((name, at), []).append(_bucket(values, begin))
    return found


def _bucket(values: list[tuple[int, float, float]], begin: int) -> Bucket:
    steps = [step for step, _, _ in values]
    finite = [value for _, _, value in values if math.isfinite(value)]
    low, high = min(finite, default=math.nan), max(finite, default=math.nan)
    mean = sum(value / len(finite) for value in finite) if finite else math.nan
    return Bucket(min(steps), max(steps), values[0][1], low, high, mean, len(finite), len(values), begin)
