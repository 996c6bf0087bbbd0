"""News: what to tell people of a run, as short texts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hookpoint.callbacks._shared.progress_view import clock
from hookpoint.core.text.secrets import masked
from hookpoint.core.text.terminal import printable

if TYPE_CHECKING:
    from hookpoint.core.run.run import Run

Tone = Literal["info", "success", "warning", "failure"]

MOST_METRICS = 20
MOST_LETTERS = 1000  # of an error's text; services cut long messages off, or refuse them
MOST_NOTES = 3


@dataclass(frozen=True)
class News:
    """A title, a text, and the tone that a service may show it in."""

    title: str
    body: str
    tone: Tone = "info"


def news(run: Run, what: str, *lines: str, tone: Tone = "info", names: Iterable[str] | None = None) -> News:
    """Return what happened to a run, where it stands, and its metrics: all of them, or those with these names."""
    epochs = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    standing = [f"epoch {run.epoch}{epochs}, step {run.step}, after {clock(run.elapsed)}"]
    if run.workdir is not None:
        standing.append(f"workdir {printable(os.path.abspath(run.workdir))}")
    parts = ["\n".join(lines), "\n".join(standing), table(run, names)]
    return News(_line(f"{run.name}: {what}"), "\n\n".join(part for part in parts if part), tone)


def table(run: Run, names: Iterable[str] | None = None) -> str:
    """Return metrics as lines, names in one column and values in another."""
    found = [name for name in (run.metrics if names is None else names) if name in run.metrics]
    shown = {_line(name): run.metrics[name] for name in found[:MOST_METRICS]}
    width = max(map(len, shown), default=0)
    rows = [f"{name:<{width}}  {value:.5g}" for name, value in shown.items()]
    more = len(found) - MOST_METRICS
    return "\n".join([*rows, *([f"and {more} more"] if more > 0 else [])])


def blame(error: BaseException) -> list[str]:
    """Return what went wrong, and what the exception's notes say of the callback at fault."""
    notes = [_line(note) for note in getattr(error, "__notes__", [])[:MOST_NOTES]]
    return [tidy(f"{type(error).__name__}: {error}"), *notes]


def command() -> str:
    """Return the command that this process was started with, as one may type it again, secrets masked."""
    arguments = sys.orig_argv[1:] if len(sys.orig_argv) > 1 else sys.argv
    typed = [os.path.basename(sys.executable) or "python", *arguments]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(masked(typed))}"


def tidy(words: str) -> str:
    """Return a text of several lines without secrets, without what a terminal would act on, and not at any length."""
    words = masked(words)
    cut = words if len(words) <= MOST_LETTERS else f"{words[:MOST_LETTERS]} ..."
    return "\n".join(printable(line) for line in cut.splitlines())


def _line(words: str) -> str:
    return printable(masked(words)[:256])
