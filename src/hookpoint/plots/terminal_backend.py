"""Draw curves in a terminal, with braille dots, or with symbols if braille dots cannot distinguish the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, log10

from rich.text import Text

from hookpoint.plots._braille_canvas import Canvas
from hookpoint.plots._tick_labels import compact, number_text, shortened, tick_texts, tick_values
from hookpoint.plots.figure_data import Curve, FigureData, Panel

INKS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_cyan", "bright_yellow", "bright_green", "bright_magenta")
SYMBOLS = "*+o#@%&=$~"
MIN_WIDTH, MIN_ROWS, DEFAULT_ROWS = 24, 4, 12
QUIET = "bright_black"
SIDE, TICK, CORNER, BOTTOM, BOTTOM_TICK = "│┤└─┬"
BEST, POINT, BROKEN, SOLID, DASHED = "●", "•", "×", "──", "╌╌"
CHARACTERS = "⣿│┤└─┬╌●•×…"  # if the terminal's encoding lacks one of these characters, the plot uses ASCII
ASCII = str.maketrans("│┤└─┬●×…", "|++-+Ox~")  # • and ╌ need no replacement, because an ASCII plot draws curves with SYMBOLS


@dataclass(frozen=True, slots=True)
class Look:
    """The size of a plot, and whether the terminal supports Unicode and colours."""

    width: int = 80
    rows: int = DEFAULT_ROWS
    is_ascii: bool = False
    has_colours: bool = True


def columns_of(look: Look) -> int:
    """Return the maximum number of braille dots in one row of a plot. A curve does not need a higher horizontal resolution."""
    return 2 * look.width


def lines_of(figure: FigureData, look: Look) -> list[Text]:
    """Return the lines to print. They fit into any terminal with at least 24 columns."""
    width = max(MIN_WIDTH, look.width)
    lines = [Text(shortened(figure.title, width), "bold")]
    for panel in figure.panels:
        lines += [Text(), Text(shortened(panel.title, width), "bold"), *_panel_lines(panel, figure, width, look)]
    if len(figure.runs) > 1 and not _uses_symbols(figure, look):
        names = [shortened(name, width - 8) for name in figure.runs]
        entries = [_entry(SOLID, INKS[number % len(INKS)], name) for number, name in enumerate(names)]
        lines += [Text(), *_wrapped(entries, width)]
    for line in lines:
        line.rstrip()
        if look.is_ascii:
            line.plain = line.plain.translate(ASCII).encode("ascii", "replace").decode()
    return lines


def _panel_lines(panel: Panel, figure: FigureData, width: int, look: Look) -> list[Text]:
    rows = max(MIN_ROWS, look.rows)
    if panel.is_empty:
        return [Text("no finite values", QUIET)]
    values = _y_tick_values(panel, max(3, rows // 3))
    texts = tick_texts(values)
    room = max(map(len, texts), default=0)
    across = width - room - 2
    canvas = _drawn(panel, figure, across, rows, look)
    labels = dict(zip((canvas.row_of(_up(panel, value)) for value in values), texts, strict=True))
    lines = []
    for row, cells in enumerate(canvas.rows()):
        label = labels.get(row, "")
        lines.append(Text.assemble((f"{label:>{room}} {TICK if label else SIDE}", QUIET), *cells))
    lines += _x_axis(figure, room, across)
    return lines + _wrapped(_legend(panel, figure, look, width), width)


def _drawn(panel: Panel, figure: FigureData, across: int, rows: int, look: Look) -> Canvas:
    braille = not _uses_symbols(figure, look)
    canvas = Canvas(across, rows, braille=braille)
    for number, curve in enumerate(panel.curves):
        xs, ys = [_right(figure, x) for x in curve.xs], [_up(panel, y) for y in curve.ys]
        canvas.line(xs, ys, ink=_curve_ink(curve, figure), style=curve.style, symbol=SYMBOLS[number % len(SYMBOLS)])
    for curve in panel.curves:
        ink = _curve_ink(curve, figure)
        if len(curve.xs) == 1 and braille:  # a single dot is hard to see
            canvas.mark(_right(figure, curve.xs[0]), _up(panel, curve.ys[0]), POINT, ink)
        for x in curve.broken:
            canvas.mark(_right(figure, x), 0.0, BROKEN, ink)
        if curve.best is not None:
            canvas.mark(_right(figure, curve.best.x), _up(panel, curve.best.y), BEST, f"bold {ink}")
    return canvas


def _uses_symbols(figure: FigureData, look: Look) -> bool:
    """Return whether to draw each curve with a different symbol.

    Symbols are needed if the terminal cannot show braille dots, or cannot show the colours that distinguish multiple runs.
    """
    return look.is_ascii or (not look.has_colours and len(figure.runs) > 1)


def _legend(panel: Panel, figure: FigureData, look: Look, width: int) -> list[Text]:
    is_comparison = len(figure.runs) > 1
    inks = {curve.name: QUIET if is_comparison else _curve_ink(curve, figure) for curve in panel.curves}
    entries = []
    if _uses_symbols(figure, look) and len(panel.curves) > 1:
        for symbol, curve in zip(cycle(SYMBOLS), panel.curves, strict=False):
            name = f"{figure.runs[curve.run]} {curve.name}" if is_comparison else curve.name
            entries.append(_entry(symbol, _curve_ink(curve, figure), shortened(name, width - 6)))
    elif not _uses_symbols(figure, look) and len(inks) > 1:
        for name, curve in {curve.name: curve for curve in panel.curves}.items():
            line = DASHED if curve.style % 2 else SOLID
            entries.append(_entry(line, inks[name], shortened(name, width - 6)))
    marked = [(curve.name, curve.best) for curve in panel.curves if curve.best is not None]
    for name, best in marked[:1] if is_comparison else marked:
        text = "best of each run" if is_comparison else f"best {number_text(best.y)} at step {best.step:,}"
        entries.append(_entry(BEST, inks[name], text))
    if any(curve.broken for curve in panel.curves):
        entries.append(_entry(BROKEN, QUIET, "NaN or infinite"))
    return entries


def _entry(symbol: str, ink: str, name: str) -> Text:
    return Text.assemble((symbol, ink), f" {name}")


def _curve_ink(curve: Curve, figure: FigureData) -> str:
    return INKS[(curve.run if len(figure.runs) > 1 else curve.style) % len(INKS)]


def _right(figure: FigureData, x: float) -> float:
    """Return the horizontal position of an x coordinate, from 0 to 1."""
    low, high = _x_limits(figure)
    return (x - low) / (high - low)


def _up(panel: Panel, y: float) -> float:
    """Return the vertical position of a value, from 0 to 1."""
    low, high = panel.limits
    if panel.log:
        return (log10(y) - log10(low)) / (log10(high) - log10(low)) if y > 0 else float("nan")
    return (y - low) / (high - low)


def _y_tick_values(panel: Panel, limit: int) -> list[float]:
    low, high = panel.limits
    if panel.low == panel.high:
        return [panel.low]
    if not panel.log or high / low < 5:
        return tick_values(low, high, limit)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        values = [value for power in powers for digit in digits if low <= (value := digit * 10.0**power) <= high]
        if len(values) <= limit:
            return values
    return values[:: ceil(len(values) / limit)]


def _x_limits(figure: FigureData) -> tuple[float, float]:
    low, high = figure.x_range
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x_axis(figure: FigureData, room: int, across: int) -> list[Text]:
    """Return the lines of the x axis, with its numbers and its unit. Numbers that would overlap are omitted."""
    low, high = _x_limits(figure)
    is_integer = figure.x_label in ("step", "epoch")
    axis = [BOTTOM] * across
    numbers = [" "] * across
    name = f" {figure.x_label}"
    free = 0
    for value in tick_values(low, high, max(2, across // 10)):
        if is_integer and value != int(value):
            continue
        column = round(_right(figure, value) * (across - 1))
        text = compact(value)
        begin = min(max(0, column - len(text) // 2), across - len(text) - len(name))
        if begin >= free and begin <= column < begin + len(text) + 1:
            axis[column] = BOTTOM_TICK
            numbers[begin : begin + len(text)] = text
            free = begin + len(text) + 1
    numbers[across - len(name) :] = name
    before = " " * (room + 1)
    return [Text(before + CORNER + "".join(axis), QUIET), Text(before + " " + "".join(numbers), QUIET)]


def _wrapped(entries: Sequence[Text], width: int) -> list[Text]:
    """Arrange the legend's entries in lines."""
    lines: list[Text] = []
    for entry in entries:
        if lines and len(lines[-1]) + 3 + len(entry) <= width:
            lines[-1].append("   ").append(entry)
        else:
            lines.append(Text("  ").append(entry))
    return lines
