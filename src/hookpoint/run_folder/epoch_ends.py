"""Epoch ends: find the last step of each epoch in a run's curves."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hookpoint.plots.series import Series
from hookpoint.run_folder.curve_columns import Key

MAX_PAIRS = 500


def epoch_ends_of(curves: Mapping[Key, Series]) -> list[tuple[int, int]]:
    """Return (step, epoch) pairs: the last step of each epoch, in order.

    For a run with many epochs, return at most about 500 pairs, evenly spaced. There are three kinds of curves: "step" for means
    since the last log step, "epoch" for means of a pass, and "value" for single values. Only the longest curve of each kind is
    read. The last epoch may be in progress.
    """
    longest: dict[str, Series] = {}
    for (_, at), series in list(curves.items()):
        if at not in longest or len(series.steps) > len(longest[at].steps):
            longest[at] = series
    ends: dict[int, int] = {}
    for series in longest.values():
        for epoch, step in zip(series.epochs, series.steps, strict=False):
            if step > ends.get(epoch, -1):
                ends[epoch] = step
    pairs = sorted((step, epoch) for epoch, step in ends.items())
    stride = math.ceil(len(pairs) / MAX_PAIRS) or 1
    return pairs[:-1:stride] + pairs[-1:]
