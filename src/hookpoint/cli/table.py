"""Tables of plain text that fit the terminal. `rich` is imported when one is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hookpoint.cli.output import rendered

GAP = 2
MIN_WRAP_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Column:
    """A column, and how it adapts if the table is too wide.

    Cells are shortened down to `min_width`; 0 means never. Then columns are dropped, the one with the highest `drop` first; 0
    means never. If a column `wraps`, its text continues on the next line. `styles` maps the text of a cell to a rich style.
    """

    title: str = ""
    right: bool = False
    min_width: int = 0
    drop: int = 0
    wraps: bool = False
    styles: Mapping[str, str] | None = None


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Return the lines of a table of at most `width` cells, or as wide as needed. Empty columns are left out.

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
