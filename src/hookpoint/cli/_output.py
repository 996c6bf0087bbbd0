"""Command output: lines and tables of plain text, with colours on terminals only, and JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import click

from hookpoint.core.text.plain_values import plain

MIN_WIDTH, MIN_WRAP_WIDTH, UNLIMITED = 40, 24, 1_000_000
GAP = 2  # the number of spaces between columns
COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "killed": "red"}


def width() -> int | None:
    """Return the terminal's number of columns, or None if the output is not a terminal."""
    is_terminal = not sys.stdout.closed and sys.stdout.isatty()
    return max(shutil.get_terminal_size().columns, MIN_WIDTH) if is_terminal else None


def wants_colour() -> bool | None:
    """Return False if the environment disables colours.

    Otherwise, return None, which makes click use colours on terminals only.
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, with colours on terminals only."""
    for line in lines:
        click.echo(line)


def print_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def note(line: str) -> None:
    """Print a line to stderr, because it is not part of the command's result."""
    click.echo(line, err=True)


def rendered(renderable: Any, width: int | None = None) -> list[str]:
    """Render an object with the rich library. Return its lines, with escape codes for colours."""
    from rich.console import Console

    console = Console(width=width or UNLIMITED, file=StringIO(), force_terminal=True, color_system="standard", no_color=False)
    with console.capture() as captured:
        console.print(renderable)
    return [line.rstrip() for line in captured.get().splitlines()]


def heading(text: str) -> str:
    return click.style(text, bold=True)


def coloured_status(status: str) -> str:
    return click.style(status, fg=COLOURS.get(status))


def flowed(prefix: str, pieces: Iterable[str], limit: int | None, gap: str = "  ") -> list[str]:
    """Join a prefix and pieces of text into lines of at most `limit` characters. Lines after the first are indented.

    >>> flowed("step 1  ", ["loss 0.5", "accuracy 0.25"], 20)
    ['step 1  loss 0.5', '        accuracy 0.25']
    """
    pieces, lines = list(pieces), []
    longest = max(map(len, pieces), default=0)
    indent = " " * (len(prefix) if limit is None or len(prefix) + longest <= limit else 4)
    line, between = prefix, ""
    for piece in pieces:
        if limit is not None and line != indent and len(line) + len(between) + len(piece) > limit:
            lines.append(line.rstrip())
            line, between = indent, ""
        line += between + piece
        between = gap
    return [*lines, line.rstrip()]


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how it adapts if the table is too wide.

    Cells are shortened, but not below `min_width`. If that is not enough, columns are dropped, highest `drop` first. A
    column with a `min_width` of 0 is never shortened, and a column with a `drop` of 0 is never dropped. If a column `wraps`,
    its text continues on the next line. `styles` maps a cell's text to a rich style.
    """

    title: str = ""
    right: bool = False
    min_width: int = 0
    drop: int = 0
    wraps: bool = False
    styles: Mapping[str, str] | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table. Empty columns are left out.

    The table fits in a terminal that is `width` characters wide. Without `width`, it is as wide as needed.

    >>> table([Column("name"), Column("step", right=True)], [("mine", "12"), ("other", "3")])
    ['name   step', 'mine     12', 'other     3']
    """
    if not rows:
        return []
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    def min_width(at: int) -> int:
        column, longest = columns[at], max(cell_len(row[at]) for row in (titles, *rows))
        return min(longest, MIN_WRAP_WIDTH if column.wraps else column.min_width or longest)

    titles = [column.title for column in columns]
    shown = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    while width is not None and sum(map(min_width, shown)) + GAP * (len(shown) - 1) > width:
        last = max(shown, key=lambda at: columns[at].drop)
        if not columns[last].drop:
            break
        shown.remove(last)

    grid = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=any(titles), header_style="")
    for column in (columns[at] for at in shown):
        can_shrink = column.wraps or column.min_width > 0
        grid.add_column(Text(column.title), justify="right" if column.right else "left", no_wrap=not can_shrink)

    def cell(column: Column, text: str) -> Text:
        style = (column.styles or {}).get(text, "")
        return Text(text, style, no_wrap=not column.wraps, overflow="fold" if column.wraps else "ellipsis")

    for row in rows:
        grid.add_row(*(cell(columns[at], row[at]) for at in shown))
    return rendered(grid, width)
