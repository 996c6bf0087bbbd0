"""Message: a short text about a run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hookpoint.callbacks._shared.progress_view import clock
from hookpoint.core.run.run import Run
from hookpoint.core.text.secrets import masked
from hookpoint.core.text.terminal import printable

Tone = Literal["info", "success", "warning", "failure"]

MAX_METRICS = 20
MAX_LENGTH = 1000  # maximum length of an error's text; services truncate or reject long messages
MAX_LINE = 256
MAX_NOTES = 3


@dataclass(frozen=True)
class Message:
    """A title, a text, and a tone, which services may show as a colour or an icon."""

    title: str
    body: str
    tone: Tone = "info"


def run_message(run: Run, event: str, *lines: str, tone: Tone = "info", names: Iterable[str] | None = None) -> Message:
    """Return a message about an event, with the run's progress and its metrics: all of them, or only those in `names`."""
    epochs = f"/{run.max_epochs}" if run.max_epochs is not None else ""
    progress = [f"epoch {run.epoch}{epochs}, step {run.step}, after {clock(run.elapsed)}"]
    if run.workdir is not None:
        progress.append(f"workdir {printable(os.path.abspath(run.workdir))}")
    paragraphs = ["\n".join(lines), "\n".join(progress), _table(run, names)]
    return Message(_one_line(f"{run.name}: {event}"), "\n\n".join(filter(None, paragraphs)), tone)


def error_lines(error: BaseException) -> list[str]:
    """Return an exception's text and its notes, which name the callback at fault."""
    notes = [_one_line(note) for note in getattr(error, "__notes__", [])[:MAX_NOTES]]
    return [clean_text(f"{type(error).__name__}: {error}"), *notes]


def command_line() -> str:
    """Return the command that started this process, ready to paste into a terminal, with secrets masked."""
    arguments = sys.orig_argv[1:] if len(sys.orig_argv) > 1 else sys.argv
    typed = [os.path.basename(sys.executable) or "python", *arguments]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(masked(typed))}"


def clean_text(text: str) -> str:
    """Return at most 1000 characters of a text, with secrets masked and control characters replaced."""
    text = masked(text)
    cut = text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]} ..."
    return "\n".join(printable(line) for line in cut.splitlines())


def short_line(text: str) -> str:
    """Return the first 256 characters of a text, with control characters replaced."""
    return printable(text[:MAX_LINE])


def _table(run: Run, names: Iterable[str] | None) -> str:
    """Return metrics as lines, with names and values in columns."""
    known = [name for name in (run.metrics if names is None else names) if name in run.metrics]
    shown = {_one_line(name): run.metrics[name] for name in known[:MAX_METRICS]}
    width = max(map(len, shown), default=0)
    rows = [f"{name:<{width}}  {value:.5g}" for name, value in shown.items()]
    if len(known) > MAX_METRICS:
        rows.append(f"and {len(known) - MAX_METRICS} more")
    return "\n".join(rows)


def _one_line(text: str) -> str:
    return short_line(masked(text))
