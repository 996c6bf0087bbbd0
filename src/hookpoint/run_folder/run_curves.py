"""What is drawn of a run folder: its curves, and what to write above them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hookpoint.core.log.best import Mode, mode_of
from hookpoint.plots.figure import FigureData
from hookpoint.plots.figure_layout import Subject, Wish, figure_of
from hookpoint.plots.panels import UnknownCurve
from hookpoint.run_folder.command_error import CommandError
from hookpoint.run_folder.formatting import duration, moment, shown
from hookpoint.run_folder.run_folder import RUNNING, SCALARS, RunFolder
from hookpoint.run_folder.scalars_file import read_series

LEAST_BUCKETS = 512


def figure_of_runs(runs: Sequence[RunFolder], wish: Wish, *, columns: int) -> FigureData:
    """Return what to draw of some run folders. Only the metrics that are wished for are read, where each is named in full."""
    names = None if not wish.metrics or any(set(name) & set("*?[") for name in wish.metrics) else wish.metrics
    try:
        return _figure_data(runs, wish, names, columns)
    except UnknownCurve:
        if names is None:
            raise
        return _figure_data(runs, wish, None, columns)  # which says what there is


def _figure_data(runs: Sequence[RunFolder], wish: Wish, names: Collection[str] | None, columns: int) -> FigureData:
    return figure_of([_subject(run, label, names, wish, columns) for run, label in _labelled(runs)], wish, columns=columns)


def _subject(run: RunFolder, label: str, names: Collection[str] | None, wish: Wish, columns: int) -> Subject:
    ends: dict[int, int] | None = {} if wish.x == "epoch" else None
    try:
        series = read_series(
            run.path / SCALARS, names, buckets=max(LEAST_BUCKETS, columns), smooth=wish.smooth, epoch_ends=ends
        )
    except FileNotFoundError:
        raise CommandError(
            f"there is nothing to draw in {shown(run.path)}: it has no {SCALARS}, which JSONWriter writes"
        ) from None
    if not series and names is None:
        raise CommandError(f"there is nothing to draw in {shown(run.path)}: no number was logged there")
    kept = {name: best.mode for name, best in run.all_best.items()}
    modes = {name: mode for name, _ in series if (mode := _mode(name, kept.get(name))) is not None}
    return Subject(label, series, _about(run), tuple(kept), modes, ends)


def _mode(name: str, kept: str | None) -> Mode | None:
    try:
        return mode_of(name, kept or "auto")
    except ValueError:
        return None


def _labelled(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, str]]:
    """Return each run with what to call it: several are told apart by their folders, as many have the name of a model."""
    folders = [run.path.resolve().name for run in runs]
    if len(runs) == 1:
        return [(runs[0], runs[0].name if runs[0].name == folders[0] else f"{runs[0].name} ({folders[0]})")]
    labels = folders if len(set(folders)) == len(folders) else [str(run.path) for run in runs]
    return list(zip(runs, labels, strict=True))


def _about(run: RunFolder) -> str:
    """Return how a run stands, and since when."""
    since = moment(run.started, "%Y-%m-%d %H:%M")
    if run.status == RUNNING:
        return f"running since {since}" if since else "running"
    return ", ".join(part for part in (run.status, since, duration(run.seconds)) if part)
