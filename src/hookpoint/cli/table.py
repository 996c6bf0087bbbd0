"""Table: aligned columns of plain text that fit a width: the least important ones give way, never a line break."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GAP = "  "
LEAST_FLOW = 24  # a column of sentences is not made narrower than this


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what is above it, and how it gives way where the table is too wide.

    It is made narrower down to `least` cells, 0 for never; then columns go, those with the highest `goes` first, 0 for never.
    One that `flows`, which can only be the last, has its sentences broken into lines of their own. `style` gets a cell as it
    is printed, and may add colours.
    """

    head: str
    right: bool = False
    least: int = 0
    goes: int = 0
    flows: bool = False
    style: Callable[[str], str] | None = None


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None, *, head: bool = True
) -> list[str]:
    """Return the lines of a table, at most `width` cells wide, or as wide as it is. Columns without any text are left out.

    >>> table([Column("name"), Column("step", right=True)], [("mine", "12"), ("other", "3")])
    ['name   step', 'mine     12', 'other     3']
    """
    heads = [column.head if head else "" for column in columns]
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    natural = {at: max(_cells(row[at]) for row in (heads, *rows)) for at in kept}
    widths = _fitted(columns, natural, width)
    style = [columns[at].style for at in widths]
    lines = [_line(columns, widths, {at: _cut(heads[at], size) for at, size in widths.items()})] if head else []
    for row in rows:
        cells = {at: _cut(row[at], size) if not columns[at].flows else row[at] for at, size in widths.items()}
        lines += _flowing(columns, widths, cells, any(style))
    return lines


def _fitted(columns: Sequence[Column], natural: dict[int, int], width: int | None) -> dict[int, int]:
    """Return the columns that stay, each with its width."""
    widths = dict(natural)

    def excess() -> int:
        return sum(widths.values()) + len(GAP) * (len(widths) - 1) - (width or 0)

    if width is None:
        return widths
    while True:
        for at in sorted(widths, key=lambda at: -widths[at]):
            least = LEAST_FLOW if columns[at].flows else columns[at].least
            if least and excess() > 0:
                widths[at] = max(min(least, widths[at]), widths[at] - excess())
        going = [at for at in widths if columns[at].goes]
        if excess() <= 0 or not going:
            break
        gone = max(going, key=lambda at: columns[at].goes)
        widths = {at: size for at, size in natural.items() if at in widths and at != gone}
    for at in sorted(widths, key=lambda at: -widths[at]):
        if excess() > 0:
            widths[at] = max(3, widths[at] - excess())
    return widths


def _flowing(columns: Sequence[Column], widths: dict[int, int], cells: dict[int, str], has_style: bool) -> list[str]:
    last = next(reversed(widths), None)
    if last is None or not columns[last].flows:
        return [_line(columns, widths, cells, has_style)]
    parts = textwrap.wrap(cells[last], widths[last], break_on_hyphens=False) or [""]
    first = _line(columns, widths, {**cells, last: parts[0]}, has_style)
    indent = " " * (sum(size for at, size in widths.items() if at != last) + len(GAP) * (len(widths) - 1))
    return [first, *(f"{indent}{part}" for part in parts[1:])]


def _line(columns: Sequence[Column], widths: dict[int, int], cells: dict[int, str], styled: bool = False) -> str:
    line = ""
    for number, (at, size) in enumerate(widths.items()):
        blanks = " " * max(size - _cells(cells[at]), 0)
        column = columns[at]
        text = column.style(cells[at]) if styled and column.style is not None else cells[at]
        line += (GAP if number else "") + (f"{blanks}{text}" if column.right else f"{text}{blanks}")
    return line.rstrip()


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cut(text: str, width: int) -> str:
    """Return a text that is at most so many cells wide: what is too long ends in an ellipsis."""
    if _cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"
