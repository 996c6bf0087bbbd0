"""`hookpoint plot`: plot metrics, as a picture or in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hookpoint.cli._output import note, print_lines, rendered, wants_colour
from hookpoint.cli._run_argument import RunType
from hookpoint.core.text.terminal import printable
from hookpoint.plots.figure_data import FigureData, X
from hookpoint.plots.figure_layout import PlotOptions
from hookpoint.plots.panels import TooManyPanels, UnknownCurve
from hookpoint.plots.terminal_backend import CHARACTERS, DEFAULT_ROWS, MIN_ROWS, MIN_WIDTH, Look, columns_of, lines_of
from hookpoint.run_folder.command_error import NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.media.landscape_file import read_landscape
from hookpoint.run_folder.run_curves import figure_of_runs
from hookpoint.run_folder.run_folder import RunFolder

PIXELS = (200, 10_000, "pixels")
COLUMNS = (MIN_WIDTH, 1_000, "columns")
ROWS = (MIN_ROWS, 200, "rows")


@click.command(short_help="Plot metrics.")
@click.argument("runs", type=RunType(may_be_remote=True), metavar="RUN...", nargs=-1, required=True)
@click.option("-m", "--metric", "metrics", multiple=True, metavar="NAME", help="A metric, or a pattern such as 'val_*'.")
@click.option("-o", "--output", metavar="FILE", help="Image file to write: .png, .svg or .pdf.")
@click.option("--terminal", is_flag=True, help="Plot in the terminal; needs no extra package.")
@click.option(
    "--smooth", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="WEIGHT", help="Smoothing weight, e.g. 0.9."
)
@click.option("--log", is_flag=True, help="Use a log scale for the values.")
@click.option("--x", type=click.Choice(["step", "epoch", "time"]), default="step", show_default=True, help="The x axis.")
@click.option("--landscape", is_flag=True, help="Draw the loss landscape; the run must have used LossLandscape.")
@click.option("--width", type=int, metavar="N", help="Width in pixels, or in terminal columns.")
@click.option("--height", type=int, metavar="N", help="Height in pixels, or in terminal rows per panel.")
def plot(
    runs: tuple[RunFolder, ...],
    metrics: tuple[str, ...],
    output: str | None,
    terminal: bool,
    smooth: float,
    log: bool,
    x: X,
    landscape: bool,
    width: int | None,
    height: int | None,
) -> None:
    """Plot the curves of one or more runs. Each run has its own colour, and each metric its own panel.

    The training and validation curves of a metric share a panel. A ring marks the best value. Without -m, the most important
    metrics are plotted. Without -o, the picture is written to curves.png in the run's folder, or in the current folder for
    multiple runs and for URLs. A PNG has twice as many pixels as --width and --height specify.

    \b
    Examples:
      hookpoint plot mine
      hookpoint plot mine other -m val_loss -o loss.svg
      hookpoint plot mine --terminal --smooth 0.9
      hookpoint plot s3://bucket/runs/mine
      hookpoint plot mine --landscape
    """
    if landscape:
        curves = {"--terminal": terminal, "-m": bool(metrics), "--smooth": bool(smooth), "--log": log, "--x": x != "step"}
        for option, is_given in curves.items():
            if is_given:
                raise click.UsageError(f"--landscape and {option} cannot be combined")
        if len(runs) > 1:
            raise click.UsageError("--landscape draws a single run")
    if terminal and output is not None:
        raise click.UsageError("--terminal and -o FILE cannot be combined")
    sizes = (("--width", width, COLUMNS if terminal else PIXELS), ("--height", height, ROWS if terminal else PIXELS))
    for option, value, (low, high, unit) in sizes:
        if value is not None and not low <= value <= high:
            raise click.UsageError(f"{option} must be from {low} to {high} {unit}, got {value}")
    if landscape:
        _landscape(runs[0], output, width, height)
        return
    options = PlotOptions(metrics, smooth, log, x)
    try:
        figure = _in_terminal(runs, options, width, height) if terminal else _in_file(runs, output, options, width, height)
    except (TooManyPanels, UnknownCurve) as error:
        raise CommandError(str(error), USAGE) from None
    for line in figure.notes:
        note(line)


def _in_file(
    runs: Sequence[RunFolder], output: str | None, options: PlotOptions, width: int | None, height: int | None
) -> FigureData:
    from hookpoint.plots.matplotlib_backend import columns_of, draw
    from hookpoint.presets.plot import picture_of

    target = _target(picture_of(runs), output)
    figure = figure_of_runs(runs, options, columns=columns_of(width))
    with _writing(target, output):
        draw(figure, target, width=width, height=height)
    return figure


def _landscape(run: RunFolder, output: str | None, width: int | None, height: int | None) -> None:
    from hookpoint.plots.landscape_picture import draw_landscape
    from hookpoint.presets.plot import landscape_picture_of

    target = _target(landscape_picture_of(run), output)
    data = read_landscape(run)
    with _writing(target, output):
        draw_landscape(data, target, width=width, height=height)


def _target(default: Path, output: str | None) -> Path:
    """Return the file to write. Raise CommandError if its extension is unknown or matplotlib is not installed."""
    from hookpoint.plots.matplotlib_backend import NoPictures, NoSuchFormat, check

    target = default if output is None else Path(output)
    try:
        check(target)
    except (NoSuchFormat, NoPictures) as error:
        raise CommandError(str(error), USAGE if isinstance(error, NoSuchFormat) else NOT_WRITTEN) from None
    return target


@contextmanager
def _writing(target: Path, output: str | None) -> Iterator[None]:
    hint = "; choose another file with -o FILE" if output is None else ""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}{hint}", NOT_WRITTEN) from None
    print_lines([f"wrote {printable(str(target))}"])


def _in_terminal(runs: Sequence[RunFolder], options: PlotOptions, width: int | None, height: int | None) -> FigureData:
    from rich.text import Text

    encoding = sys.stdout.encoding or "ascii"
    look = Look(
        width=width or shutil.get_terminal_size().columns,
        rows=height or DEFAULT_ROWS,
        is_ascii=CHARACTERS.encode(encoding, "replace").decode(encoding) != CHARACTERS,
        has_colours=sys.stdout.isatty() and wants_colour() is not False,
    )
    figure = figure_of_runs(runs, options, columns=columns_of(look))
    print_lines(rendered(Text("\n").join(lines_of(figure, look))))
    return figure
