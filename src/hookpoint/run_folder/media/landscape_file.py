"""Read the loss landscape that the callback LossLandscape has stored for a run."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

from hookpoint.plots.landscape import Landscape, Stop
from hookpoint.run_folder._plain_file import open_plain
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.formatting import shown
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import LANDSCAPE, LANDSCAPE_FILE

MAX_BYTES = 64 * 2**20
MAX_SIZE = 1_000


def read_landscape(run: RunFolder) -> Landscape:
    """Return the landscape of a run. Raises CommandError if there is none, or if the file is invalid."""
    path = run.path / LANDSCAPE / LANDSCAPE_FILE
    try:
        with open_plain(path) as file:
            data = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise CommandError(f"{shown(run.where)} has no loss landscape; the callback LossLandscape computes it") from None
    try:
        return _parsed(run.name, json.loads(data))
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        raise CommandError(f"{shown(path)} is not a loss landscape: {shown(f'{type(error).__name__}: {error}')}") from None


def _parsed(title: str, facts: Any) -> Landscape:
    x, y = (_axis_values(facts[axis]) for axis in "xy")
    loss = [[_number(value) for value in row] for row in facts["loss"]]
    if len(loss) != len(y) or any(len(row) != len(x) for row in loss):
        raise ValueError("the shape of the loss does not match the axes")
    if not any(math.isfinite(value) for row in loss for value in row):
        raise ValueError("no loss is finite")
    path = [Stop(int(stop["step"]), _finite(stop["x"]), _finite(stop["y"])) for stop in facts["path"]]
    shares = facts.get("explained")
    explained = None if shares is None else (_finite(shares[0]), _finite(shares[1]))
    return Landscape(title, x, y, loss, path, str(facts["directions"]), explained, _number(facts["final_loss"]))


def _axis_values(values: Any) -> list[float]:
    ticks = [_finite(value) for value in values]
    if not 2 <= len(ticks) <= MAX_SIZE or any(left >= right for left, right in pairwise(ticks)):
        raise ValueError(f"an axis must have 2 to {MAX_SIZE} increasing values")
    return ticks


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
