"""hookpoint plot: what was logged, as a picture or in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hookpoint.cli.output import note, put, wants_colour
from hookpoint.cli.run_argument import RunType
from hookpoint.core.text.terminal import printable
from hookpoint.plots.figure import FigureData, X
from hookpoint.plots.figure_layout import Wish
from hookpoint.plots.panels import TooManyPanels, UnknownCurve
from hookpoint.plots.terminal_backend import CHARACTERS, DEFAULT_ROWS, LEAST_ROWS, LEAST_WIDTH, Look, columns_of, lines_of
from hookpoint.run_folder.command_error import NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.run_curves import figure_of_runs
from hookpoint.run_folder.run_folder import RunFolder

PIXELS = (200, 10_000, "pixels")
COLUMNS = (LEAST_WIDTH, 1_000, "columns")
ROWS = (LEAST_ROWS, 200, "rows")


@click.command(short_help="Draw what was logged.")
@click.argument("runs", type=RunType(), metavar="RUN...", nargs=-1, required=True)
@click.option(
    "-m", "--metric", "metrics", multiple=True, metavar="NAME", help="Draw this metric, or those of a pattern: 'val_*'."
)
@click.option("-o", "--output", metavar="FILE", help="Write the picture there: .png, .svg or .pdf.")
@click.option("--terminal", is_flag=True, help="Draw in the terminal; needs no extra package.")
@click.option("--smooth", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="WEIGHT", help="Smooth: 0.9, say.")
@click.option("--log", is_flag=True, help="Use a log scale for the values.")
@click.option("--x", type=click.Choice(["step", "epoch", "time"]), default="step", show_default=True, help="Draw along this.")
@click.option("--width", type=int, metavar="N", help="Pixels of the picture, or columns of the terminal.")
@click.option("--height", type=int, metavar="N", help="Pixels of the picture, or rows of each panel in the terminal.")
def plot(
    runs: tuple[RunFolder, ...],
    metrics: tuple[str, ...],
    output: str | None,
    terminal: bool,
    smooth: float,
    log: bool,
    x: X,
    width: int | None,
    height: int | None,
) -> None:
    """Draw the curves of one run, or of several to compare them: each run has its colour, each metric its panel.

    Training and validation share a panel; the best value has a ring. Without -m the metrics are drawn that say most. Without -o
    the picture is curves.png in the folder of the run, or in this one for several runs; a PNG has twice as many pixels each
    way as --width and --height say.

    \b
    Examples:
      hookpoint plot mine
      hookpoint plot mine other -m val_loss -o loss.svg
      hookpoint plot mine --terminal --smooth 0.9
    """
    if terminal and output is not None:
        raise click.UsageError("either --terminal or -o FILE")
    sizes = (("--width", width, COLUMNS if terminal else PIXELS), ("--height", height, ROWS if terminal else PIXELS))
    for option, given, (least, most, unit) in sizes:
        if given is not None and not least <= given <= most:
            raise click.UsageError(f"{option} is from {least} to {most} {unit} here, not {given}")
    wish = Wish(metrics, smooth, log, x)
    try:
        sheet = _in_terminal(runs, wish, width, height) if terminal else _in_file(runs, output, wish, width, height)
    except (TooManyPanels, UnknownCurve) as error:
        raise CommandError(str(error), USAGE) from None
    for line in sheet.notes:
        note(line)


def _in_file(runs: Sequence[RunFolder], output: str | None, wish: Wish, width: int | None, height: int | None) -> FigureData:
    from hookpoint.plots.matplotlib_backend import NoPictures, NoSuchFormat, check, columns_of, draw
    from hookpoint.presets.plot import picture_of

    target = picture_of(runs) if output is None else Path(output)
    try:
        check(target)  # before anything is read
    except NoSuchFormat as error:
        raise CommandError(str(error), USAGE) from None
    except NoPictures as error:
        raise CommandError(str(error), NOT_WRITTEN) from None
    elsewhere = "; -o FILE writes it elsewhere" if output is None else ""
    sheet = figure_of_runs(runs, wish, columns=columns_of(width))
    try:
        draw(sheet, target, width=width, height=height)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}{elsewhere}", NOT_WRITTEN) from None
    put([f"wrote {printable(str(target))}"])
    return sheet


def _in_terminal(runs: Sequence[RunFolder], wish: Wish, width: int | None, height: int | None) -> FigureData:
    is_terminal = sys.stdout.isatty()
    look = Look(
        width=width or shutil.get_terminal_size().columns,
        rows=height or DEFAULT_ROWS,
        is_ascii=not _can_show(CHARACTERS),
        has_colours=is_terminal and wants_colour() is not False,
    )
    sheet = figure_of_runs(runs, wish, columns=columns_of(look))
    put(["".join(_styled(text, style) for text, style in line) for line in lines_of(sheet, look)])
    return sheet


def _styled(text: str, style: str) -> str:
    words = style.split()
    colour = next((word for word in words if word != "bold"), None)
    return click.style(text, fg=colour, bold="bold" in words or None) if words and text.strip() else text


def _can_show(characters: str) -> bool:
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
