"""plot: a picture of what runs have logged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hookpoint.plots.figure import X
from hookpoint.plots.figure_layout import Wish
from hookpoint.plots.matplotlib_backend import check, columns_of, draw
from hookpoint.run_folder.find_run import the_run
from hookpoint.run_folder.run_curves import figure_of_runs
from hookpoint.run_folder.run_folder import RunFolder

PICTURE = "curves.png"


def plot(
    *runs: str | os.PathLike[str],
    path: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    smooth: float = 0.0,
    log: bool = False,
    x: X = "step",
    width: int | None = None,
    height: int | None = None,
) -> Path:
    """Draw the curves of run folders, each in its colour, to a .png, .svg or .pdf; return where the picture is.

    Without a path it is curves.png in the folder of the run, or in the current one for several runs. Without metrics those are
    drawn that say most, in at most six panels; a name may be a pattern, `val_*`. `smooth` is the weight of the past in a
    moving average, from 0 to 1. `width` and `height` are in pixels, of which a PNG has twice as many. It needs no display, and
    the extra `plot`.

    >>> with Loop(workdir="runs/mine") as run:
    ...     for epoch in run.epochs(3):
    ...         for batch in run.batches([1.0, 3.0]):
    ...             run.log(loss=batch / epoch)
    >>> plot("runs/mine", smooth=0.5).name
    'curves.png'
    """
    folders = [the_run(os.fspath(run)) for run in runs]
    if not folders:
        raise ValueError("plot() has no run to draw; give the folder of one, or of several")
    wish = Wish([metrics] if isinstance(metrics, str) else metrics, smooth, log, x)
    target = picture_of(folders) if path is None else Path(path)
    check(target)
    draw(figure_of_runs(folders, wish, columns=columns_of(width)), target, width=width, height=height)
    return target


def picture_of(runs: Sequence[RunFolder]) -> Path:
    """Return where a picture is to be when nobody says."""
    return runs[0].path / PICTURE if len(runs) == 1 else Path(PICTURE)
