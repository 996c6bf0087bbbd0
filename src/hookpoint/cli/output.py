"""Output of commands: plain lines, colours on a terminal only, and JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from io import StringIO
from typing import Any

import click

from hookpoint.core.text.plain_values import plain

MIN_WIDTH, UNLIMITED = 40, 1_000_000
COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "killed": "red"}


def width() -> int | None:
    """Return the number of columns of the terminal, or None if the output is not a terminal."""
    is_terminal = not sys.stdout.closed and sys.stdout.isatty()
    return max(shutil.get_terminal_size().columns, MIN_WIDTH) if is_terminal else None


def wants_colour() -> bool | None:
    """Return False if the environment disables colours, else None: click uses them on terminals only."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, with colours on terminals only."""
    for line in lines:
        click.echo(line)


def print_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def note(line: str) -> None:
    """Print a line to stderr that is not part of the result."""
    click.echo(line, err=True)


def rendered(renderable: Any, width: int | None = None) -> list[str]:
    """Return the lines of a rich object, with escape codes for colours."""
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
    """Return a prefix and pieces of text, in lines of at most `limit` cells. Lines after the first are indented.

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
