"""`hookpoint explain`: print which callback runs when, and why."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import Any

import click

from hookpoint.cli._named_object import failed, named_object
from hookpoint.cli._output import Column, print_lines, table, width
from hookpoint.core.callback.callback import Callback
from hookpoint.core.errors import HookpointError
from hookpoint.core.hooks.hooks import Hooks
from hookpoint.core.text.terminal import printable
from hookpoint.presets.build import SUFFIXES, build
from hookpoint.run_folder.command_error import NO, CommandError, one_line

# The columns that are left out in a narrow terminal. The column with the highest number is left out first.
DROP = {"method": 1, "when": 2, "ranks": 3, "on_error": 4}


@click.command()
@click.argument("what", metavar="MODULE:CALLBACKS|FILE")
def explain(what: str) -> None:
    """Print which callbacks run at which point, in which order, and why.

    CALLBACKS is a name in MODULE. It refers to a list of callbacks, one callback, a Hooks object, an object with a `hooks`
    attribute, or a function without arguments that returns one of these. MODULE is imported; the current folder is searched
    first. The exit code is 1 if the callbacks are invalid.

    FILE is a configuration of callbacks: a .yaml, .toml or .json file for `hookpoint.build`.

    \b
    Examples:
      hookpoint explain train:callbacks
      hookpoint explain experiments.resnet:make_callbacks
      hookpoint explain config.yaml
    """
    is_file = what.endswith(SUFFIXES)
    target = partial(build, what) if is_file else named_object(what, "callbacks")
    try:
        if callable(target) and not isinstance(target, Callback | Hooks | list | tuple):
            target = target()
        hooks = _hooks(target)
    except HookpointError as error:
        raise CommandError(one_line(str(error)), NO) from error
    except Exception as error:
        raise failed(what, error) from error
    print_lines(fitted([printable(line) for line in hooks.explain().splitlines()], width()))


def _hooks(target: Any) -> Hooks:
    hooks = getattr(target, "hooks", target)
    if isinstance(hooks, Hooks):
        return hooks
    return Hooks(target if isinstance(target, list | tuple) else [target])


def fitted(lines: list[str], limit: int | None) -> list[str]:
    """Fit a table to a width. The table has aligned columns, and its second line consists of dashes."""
    if limit is None or len(lines) < 2 or max(map(len, lines)) <= limit:
        return lines
    end = lines.index("") if "" in lines else len(lines)
    starts = [match.start() for match in re.finditer("-+", lines[1])]
    spans = [slice(start, stop) for start, stop in pairwise([*starts, None])]
    head, _, *rows = [[line[span].rstrip() for span in spans] for line in lines[:end]]
    columns = [Column(name, min_width=16, drop=DROP.get(name, 0), wraps=name == head[-1]) for name in head]
    return [*table(columns, rows, limit), *lines[end:]]
