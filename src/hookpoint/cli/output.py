"""What commands print: plain lines, with colours on a terminal only, and JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable
from typing import Any

import click

from hookpoint.core.text.plain_values import plain

LEAST_WIDTH = 40
COLOURS = {"running": "cyan", "finished": "green", "stopped": "yellow", "failed": "red", "killed": "red"}


def width() -> int | None:
    """Return how many cells a line may have: those of the terminal; None where the output goes anywhere else."""
    try:
        is_terminal = sys.stdout.isatty()
    except ValueError:  # it is closed
        return None
    return max(shutil.get_terminal_size().columns, LEAST_WIDTH) if is_terminal else None


def wants_colour() -> bool | None:
    """Return False where colours are not wanted, None where click finds out by itself: on a terminal they are."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def put(lines: Iterable[str]) -> None:
    """Print lines; control characters of colours go to terminals only."""
    for line in lines:
        click.echo(line)


def put_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def note(line: str) -> None:
    """Say something that is no part of the answer, on stderr."""
    click.echo(line, err=True)


def heading(text: str) -> str:
    return click.style(text, bold=True)


def status_style(cell: str) -> str:
    return click.style(cell, fg=COLOURS.get(cell.strip()))


def flowed(prefix: str, pieces: Iterable[str], limit: int | None, gap: str = "  ") -> list[str]:
    """Return pieces in one line after a prefix, or in several of at most `limit` cells, those after the first indented.

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
