"""The argument RUN: a path, a name under runs/ or a URL, with shell completion."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from hookpoint.run_folder.find_run import find_run, run_names
from hookpoint.run_folder.remote.find_readable_run import find_readable_run


class RunType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A run folder. Shells complete run names or, if none matches, paths."""

    name = "run"

    def __init__(self, *, may_be_remote: bool = False) -> None:
        self.may_be_remote = may_be_remote

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        find = find_readable_run if self.may_be_remote else find_run
        return find(value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = [name for name in run_names() if name.startswith(incomplete) and name.isprintable()]
        return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="dir")]


run_argument = click.argument("run", type=RunType(), metavar="RUN")
# Also accepts the URL of a mirror.
readable_run_argument = click.argument("run", type=RunType(may_be_remote=True), metavar="RUN")
