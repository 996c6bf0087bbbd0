"""A sheet in a terminal: curves of braille, or of symbols where there are no such characters or no colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from hookpoint.plots._braille_canvas import Canvas
from hookpoint.plots._tick_labels import compact, number_text, shortened, tick_texts, ticks
from hookpoint.plots.figure import Curve, FigureData, Panel

Piece = tuple[str, str]  # a text and its style, for rich
Line = list[Piece]

INKS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_cyan", "bright_yellow", "bright_green", "bright_magenta")
SYMBOLS = "*+o#@%&=$~"
LEAST_WIDTH, LEAST_ROWS, DEFAULT_ROWS = 24, 4, 12
QUIET = "bright_black"
CHARACTERS = "⣿│┤└─┬╌●•×…"  # which an encoding has to have, or else all is ASCII


@dataclass(frozen=True, slots=True)
class Look:
    """What a terminal can show: its width, the rows of one panel's curves, other characters than ASCII, colours."""

    width: int = 80
    rows: int = DEFAULT_ROWS
    is_ascii: bool = False
    has_colours: bool = True


@dataclass(frozen=True, slots=True)
class _Frame:
    side: str
    tick: str
    corner: str
    bottom: str
    bottom_tick: str
    best: str
    point: str
    broken: str
    solid: str
    dashed: str


_LINES = _Frame("│", "┤", "└", "─", "┬", "●", "•", "×", "──", "╌╌")
_ASCII = _Frame("|", "+", "+", "-", "+", "O", "*", "x", "--", "- ")


def columns_of(look: Look) -> int:
    """Return how many dots a panel is wide, at most: no curve needs more points."""
    return 2 * look.width


def lines_of(sheet: FigureData, look: Look) -> list[Line]:
    """Return the lines to print. None is wider than the terminal, unless that is too narrow for any curve."""
    width = max(LEAST_WIDTH, look.width)
    lines: list[Line] = [[(_fitting(sheet.title, width, look), "bold")]]
    for panel in sheet.panels:
        lines += [[], [(_fitting(panel.title, width, look), "bold")], *_panel_lines(panel, sheet, width, look)]
    if len(sheet.runs) > 1 and not _uses_symbols(sheet, look):
        lines.append([])
        lines += _wrapped(
            [((_LINES.solid, _ink(number)), (_fitting(name, width - 8, look), "")) for number, name in enumerate(sheet.runs)],
            width,
        )
    return [_without_end(line) for line in lines]


def _panel_lines(panel: Panel, sheet: FigureData, width: int, look: Look) -> list[Line]:
    frame = _ASCII if look.is_ascii else _LINES
    rows = max(LEAST_ROWS, look.rows)
    if panel.is_empty:
        return [[("no finite values", QUIET)]]
    values = _y_ticks(panel, max(3, rows // 3))
    texts = tick_texts(values)
    room = max(map(len, texts), default=0)
    across = width - room - 2
    canvas = _drawn(panel, sheet, across, rows, look, frame)
    labels = dict(zip((canvas.row_of(_up(panel, value)) for value in values), texts, strict=True))
    lines: list[Line] = []
    for row, cells in enumerate(canvas.rows()):
        label = labels.get(row, "")
        lines.append([(f"{label:>{room}} ", QUIET), (frame.tick if label else frame.side, QUIET), *_joined(cells)])
    lines += _x_axis(sheet, room, across, frame)
    return lines + _wrapped(_legend(panel, sheet, look, frame, width), width)


def _drawn(panel: Panel, sheet: FigureData, across: int, rows: int, look: Look, frame: _Frame) -> Canvas:
    braille = not _uses_symbols(sheet, look)
    canvas = Canvas(across, rows, braille=braille)
    low, high = _x_limits(sheet)
    for number, curve in enumerate(panel.curves):
        xs = [(x - low) / (high - low) for x in curve.xs]
        ys = [_up(panel, y) for y in curve.ys]
        canvas.line(xs, ys, ink=_curve_ink(curve, sheet), style=curve.style, symbol=SYMBOLS[number % len(SYMBOLS)])
    for curve in panel.curves:
        ink = _curve_ink(curve, sheet)
        if len(curve.xs) == 1 and braille:  # one dot is easily overlooked
            canvas.mark((curve.xs[0] - low) / (high - low), _up(panel, curve.ys[0]), frame.point, ink)
        for x in curve.broken:
            canvas.mark((x - low) / (high - low), 0.0, frame.broken, ink)
        if curve.best is not None:
            canvas.mark((curve.best.x - low) / (high - low), _up(panel, curve.best.y), frame.best, f"bold {ink}")
    return canvas


def _uses_symbols(sheet: FigureData, look: Look) -> bool:
    """Say whether curves have symbols of their own: where nothing else would tell them apart."""
    return look.is_ascii or (not look.has_colours and len(sheet.runs) > 1)


def _legend(panel: Panel, sheet: FigureData, look: Look, frame: _Frame, width: int) -> list[tuple[Piece, Piece]]:
    several = len(sheet.runs) > 1
    entries: list[tuple[Piece, Piece]] = []
    if _uses_symbols(sheet, look):
        for number, curve in enumerate(panel.curves):
            name = f"{sheet.runs[curve.run]} {curve.name}" if several else curve.name
            if len(panel.curves) > 1:
                entries.append(
                    ((SYMBOLS[number % len(SYMBOLS)], _curve_ink(curve, sheet)), (_fitting(name, width - 6, look), ""))
                )
    elif len({curve.name for curve in panel.curves}) > 1:
        for name, curve in {curve.name: curve for curve in panel.curves}.items():
            swatch = frame.dashed if curve.style % 2 else frame.solid
            entries.append(((swatch, QUIET if several else _curve_ink(curve, sheet)), (_fitting(name, width - 6, look), "")))
    marked = [(curve, curve.best) for curve in panel.curves if curve.best is not None]
    for curve, best in marked if not several else marked[:1]:
        text = "best of each run" if several else f"best {number_text(best.y)} at step {best.step:,}"
        entries.append(((frame.best, QUIET if several else _curve_ink(curve, sheet)), (text, "")))
    if any(curve.broken for curve in panel.curves):
        entries.append(((frame.broken, QUIET), ("NaN or infinite", "")))
    return entries


def _ink(number: int) -> str:
    return INKS[number % len(INKS)]


def _curve_ink(curve: Curve, sheet: FigureData) -> str:
    return _ink(curve.run if len(sheet.runs) > 1 else curve.style)


def _up(panel: Panel, y: float) -> float:
    """Return how far up a value is, from 0 to 1."""
    low, high = panel.limits
    if panel.log:
        return (log10(y) - log10(low)) / (log10(high) - log10(low)) if y > 0 else float("nan")
    return (y - low) / (high - low)


def _y_ticks(panel: Panel, most: int) -> list[float]:
    low, high = panel.limits
    if panel.low == panel.high:
        return [panel.low]
    if not panel.log or high / low < 5:
        return ticks(low, high, most)
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        found = [value for power in powers for digit in digits if low <= (value := digit * 10.0**power) <= high]
        if len(found) <= most:
            return found
    return found[:: ceil(len(found) / most)]


def _x_limits(sheet: FigureData) -> tuple[float, float]:
    low, high = sheet.x_range
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x_axis(sheet: FigureData, room: int, across: int, frame: _Frame) -> list[Line]:
    """Return the axis, and its numbers with what they count; numbers that would touch are left out."""
    low, high = _x_limits(sheet)
    whole = sheet.x_label in ("step", "epoch")
    places = [value for value in ticks(low, high, max(2, across // 10)) if not whole or value == int(value)]
    axis = [frame.bottom] * across
    numbers = [" "] * across
    name = f" {sheet.x_label}"
    free = 0
    for value in places:
        column = round((value - low) / (high - low) * (across - 1))
        text = compact(value)
        begin = min(max(0, column - len(text) // 2), across - len(text) - len(name))
        if begin >= free and begin <= column < begin + len(text) + 1:
            axis[column] = frame.bottom_tick
            numbers[begin : begin + len(text)] = text
            free = begin + len(text) + 1
    numbers[across - len(name) :] = name
    before = " " * (room + 1)
    return [[(before + frame.corner + "".join(axis), QUIET)], [(before + " " + "".join(numbers), QUIET)]]


def _joined(cells: Sequence[Piece]) -> Line:
    """Return cells with neighbours of one ink as one piece."""
    line: Line = []
    for text, ink in cells:
        if line and line[-1][1] == ink:
            line[-1] = (line[-1][0] + text, ink)
        else:
            line.append((text, ink))
    return line


def _without_end(line: Line) -> Line:
    """Return a line without blanks at its end."""
    line = list(line)
    while line and not line[-1][0].rstrip():
        line.pop()
    return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])] if line else []


def _wrapped(entries: Sequence[tuple[Piece, Piece]], width: int) -> list[Line]:
    """Return entries of a legend, as many on a line as fit."""
    lines: list[Line] = []
    used = width
    for swatch, name in entries:
        size = len(swatch[0]) + 1 + len(name[0])
        if used + 3 + size > width:
            lines.append([("  ", "")])
            used = 2
        else:
            lines[-1].append(("   ", ""))
            used += 3
        lines[-1] += [swatch, (" ", ""), name]
        used += size
    return lines


def _fitting(text: str, most: int, look: Look) -> str:
    short = shortened(text, most)
    return short.replace("…", "~").encode("ascii", "replace").decode() if look.is_ascii else short
