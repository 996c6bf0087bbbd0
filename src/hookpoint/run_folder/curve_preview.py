"""Previews: read some records from a long file, at evenly spaced places."""

from __future__ import annotations

import os

from hookpoint.plots.series import Bucket
from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.curve_columns import Key, columns_of
from hookpoint.run_folder.json_records import tables_of

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
            lines = file.read(place_bytes).split(b"\n")[1 if begin else 0 : -1]
            tables, _ = tables_of(lines)
            for key, column in columns_of(tables, [begin] * len(lines)).items():
                found.setdefault(key, []).append(column.bucket(0, len(column.values)))
            if size <= place_bytes:
                break
    return found
