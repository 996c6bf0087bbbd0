"""Run curves: build a figure from one or more run folders."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from hookpoint.core.log.best import Mode, mode_of
from hookpoint.plots.figure_data import FigureData
from hookpoint.plots.figure_layout import PlotOptions, Subject, figure_of
from hookpoint.plots.panels import UnknownCurve
from hookpoint.run_folder._scalars_file import read_series
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.formatting import duration, moment, shown
from hookpoint.run_folder.run_folder import RUNNING, SCALARS, RunFolder

MIN_BUCKETS = 512


def figure_of_runs(runs: Sequence[RunFolder], options: PlotOptions, *, columns: int) -> FigureData:
    """Return a figure of one or more runs. Only the requested metrics are read, unless one of them is a pattern."""
    names = None if not options.metrics or any(set(name) & set("*?[") for name in options.metrics) else options.metrics

    def read(names: Collection[str] | None) -> FigureData:
        subjects = [_subject(run, label, names, options, columns) for run, label in _labelled(runs)]
        return figure_of(subjects, options, columns=columns)

    try:
        return read(names)
    except UnknownCurve:
        return read(None)  # read all metrics, so that the error lists them


def _subject(run: RunFolder, label: str, names: Collection[str] | None, options: PlotOptions, columns: int) -> Subject:
    ends: dict[int, int] | None = {} if options.x == "epoch" else None
    try:
        series = read_series(
            run.path / SCALARS, names, buckets=max(MIN_BUCKETS, columns), smooth=options.smooth, epoch_ends=ends
        )
    except FileNotFoundError:
        raise CommandError(f"nothing to plot: {shown(run.where)} has no {SCALARS}, which JSONWriter writes") from None
    if not series and names is None:
        raise CommandError(f"nothing to plot: no numbers in {shown(run.where)}")
    stored = {name: best.mode for name, best in run.all_best.items()}
    modes: dict[str, Mode] = {}
    for name, _ in series:
        with suppress(ValueError):  # the metric's name does not imply whether lower or higher is better
            modes[name] = mode_of(name, stored.get(name) or "auto")
    return Subject(label, series, _about(run), tuple(stored), modes, ends)


def _labelled(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, str]]:
    """Return each run with its label. Multiple runs are labelled by folder, because their names are often the same."""
    folders = [run.path.resolve().name for run in runs]
    if len(runs) == 1:
        return [(runs[0], runs[0].name if runs[0].name == folders[0] else f"{runs[0].name} ({folders[0]})")]
    labels = folders if len(set(folders)) == len(folders) else [run.where for run in runs]
    return list(zip(runs, labels, strict=True))


def _about(run: RunFolder) -> str:
    """Return a text with a run's status, its start time and, if it has ended, its duration."""
    since = moment(run.started, "%Y-%m-%d %H:%M")
    if run.status == RUNNING:
        return f"running since {since}" if since else "running"
    return ", ".join(part for part in (run.status, since, duration(run.seconds)) if part)
