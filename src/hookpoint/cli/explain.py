"""`hookpoint explain`: which callback runs when, and why there."""

from __future__ import annotations

from typing import Any

import click

from hookpoint.cli.named_object import failed, named_object
from hookpoint.cli.output import put, width
from hookpoint.cli.table import Column, table
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import HookpointError
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.text.terminal import printable
from hookpoint.run_folder.command_error import NO, CommandError, one_line

GOES = {"method": 1, "when": 2, "ranks": 3, "on_error": 4}  # on a narrow terminal, the last first


@click.command()
@click.argument("what", metavar="MODULE:CALLBACKS")
def explain(what: str) -> None:
    """Print which of some callbacks run at which point, in which order, and why there.

    CALLBACKS is a name in MODULE: a list of callbacks, one callback, Hooks, something with hooks, or a function without
    arguments that returns one of these. MODULE is looked for in the current folder first, and is imported. A mistake in the
    callbacks is said in one line, and the exit code is 1.

    \b
    Examples:
      hookpoint explain train:callbacks
      hookpoint explain experiments.resnet:make_callbacks
    """
    given = named_object(what)
    try:
        if callable(given) and not isinstance(given, Callback | Hooks | list | tuple):
            given = given()
        hooks = _hooks(given)
    except HookpointError as error:
        raise CommandError(one_line(str(error)), NO) from error
    except Exception as error:
        raise failed(what, error) from error
    put(fitted([printable(line) for line in hooks.explain().splitlines()], width()))


def _hooks(given: Any) -> Hooks:
    if isinstance(given, Hooks):
        return given
    if isinstance(getattr(given, "hooks", None), Hooks):
        return given.hooks  # type: ignore[no-any-return]
    return Hooks(given if isinstance(given, list | tuple) else [given])


def fitted(lines: list[str], limit: int | None) -> list[str]:
    """Return a table of aligned columns, with dashes in its second line, as one that fits."""
    if limit is None or len(lines) < 2 or max(map(len, lines)) <= limit:
        return lines
    end = lines.index("") if "" in lines else len(lines)
    spans, start = [], 0
    for dashes in lines[1].split("  "):
        spans.append((start, start + len(dashes)))
        start += len(dashes) + 2
    cells = [
        tuple(line[begin : finish if finish != spans[-1][1] else None].rstrip() for begin, finish in spans)
        for line in lines[:end]
    ]
    head, _, *rows = cells
    columns = [Column(name, least=16, goes=GOES.get(name, 0), flows=name == head[-1]) for name in head]
    return [*table(columns, rows, limit), *lines[end:]]
