"""JSON rows: the format of the lines that JSONWriter writes, and `read_scalars`, which reads them back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hookpoint.core.errors import BadData

OWN_KEYS = frozenset({"step", "iteration", "epoch", "time", "at", "event"})  # all other keys are metrics
NOT_FINITE = {name: float(name) for name in ("nan", "inf", "-inf")}  # JSON has no such numbers, so they are written as strings


def read_scalars(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a file that JSONWriter wrote, oldest first, with NaN and infinity as floats.

    An incomplete last line is left out, because a run may still be writing it. Any other line that is not JSON raises BadData.
    """
    rows = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(keepends=True), 1):
        if line.endswith(b"\n"):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadData(f"{os.fspath(path)}, line {number} is not valid JSON: {error}") from None
            texts = {key: value for key, value in row.items() if isinstance(value, str) and key not in OWN_KEYS}
            rows.append(row | {key: NOT_FINITE.get(text, text) for key, text in texts.items()})
    return rows
