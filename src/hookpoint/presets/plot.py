"""plot: plot metrics from run folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hookpoint.core.errors import BadArgument
from hookpoint.plots.figure_data import X
from hookpoint.plots.figure_layout import PlotOptions
from hookpoint.plots.landscape_picture import draw_landscape
from hookpoint.plots.matplotlib_backend import check, columns_of, draw
from hookpoint.run_folder.media.landscape_file import read_landscape
from hookpoint.run_folder.remote.find_readable_run import find_readable_run
from hookpoint.run_folder.run_curves import figure_of_runs
from hookpoint.run_folder.run_folder import RunFolder
from hookpoint.storage.checkpoint.layout import LANDSCAPE_PICTURE

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
    landscape: bool = False,
) -> Path:
    """Plot the metrics of one or more runs to a .png, .svg or .pdf file, and return the file's path.

    runs: Folders, names under runs/, or URLs of mirrors such as "s3://bucket/runs/mine".
    path: Defaults to curves.png in the run folder. For multiple runs and for URLs, it defaults to curves.png in the current
        folder.
    metrics: Names, or patterns such as `val_*`. Defaults to the most important metrics, in at most six panels.
    smooth: Weight of past values in a moving average, at least 0 and below 1.
    log: Use a log scale for the values.
    x: "step", "epoch" or "time".
    width, height: Size in screen pixels. A PNG file has twice as many pixels in each direction.
    landscape: Draw the run's loss landscape instead of its curves. The run must have used the callback `LossLandscape`. `path`
        then defaults to landscape.png.

    Each run has its own colour. Needs the extra `plot`, but no display.

    >>> with Loop(workdir="runs/mine") as run:
    ...     for epoch in run.epochs(3):
    ...         for batch in run.batches([1.0, 3.0]):
    ...             run.log(loss=batch / epoch)
    >>> plot("runs/mine", smooth=0.5).name
    'curves.png'
    """
    folders = [find_readable_run(os.fspath(run)) for run in runs]
    if not folders:
        raise BadArgument("plot() needs at least one run.", write='plot("runs/mine")')
    if landscape:
        return _plot_landscape(folders, path, metrics or smooth or log or x != "step", width, height)
    options = PlotOptions([metrics] if isinstance(metrics, str) else metrics, smooth, log, x)
    target = picture_of(folders) if path is None else Path(path)
    check(target)
    draw(figure_of_runs(folders, options, columns=columns_of(width)), target, width=width, height=height)
    return target


def _plot_landscape(
    runs: Sequence[RunFolder], path: str | os.PathLike[str] | None, has_options: object, width: int | None, height: int | None
) -> Path:
    if len(runs) > 1 or has_options:
        raise BadArgument(
            "plot(landscape=True) takes a single run, and no options for curves.", write='plot("runs/mine", landscape=True)'
        )
    target = landscape_picture_of(runs[0]) if path is None else Path(path)
    check(target)
    draw_landscape(read_landscape(runs[0]), target, width=width, height=height)
    return target


def landscape_picture_of(run: RunFolder) -> Path:
    """Return the default path for a plot of this run's loss landscape."""
    return Path(LANDSCAPE_PICTURE) if run.is_remote else run.path / LANDSCAPE_PICTURE


def picture_of(runs: Sequence[RunFolder]) -> Path:
    """Return the default path for a plot of these runs."""
    return runs[0].path / PICTURE if len(runs) == 1 and not runs[0].is_remote else Path(PICTURE)
