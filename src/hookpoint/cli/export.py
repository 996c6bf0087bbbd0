"""`hookpoint export`: write the metrics of a run as a table."""

from __future__ import annotations

import csv
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TextIO

import click

from hookpoint.cli._output import note
from hookpoint.cli._run_argument import readable_run_argument
from hookpoint.core.text.plain_values import plain
from hookpoint.run_folder.command_error import NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.formatting import counted, shown
from hookpoint.run_folder.pivot import WideTable
from hookpoint.run_folder.run_folder import SCALARS, RunFolder
from hookpoint.storage.checkpoint.layout import RUN_FILES
from hookpoint.storage.disk import disk

STDOUT = "-"
KINDS = frozenset({"step", "epoch", "value"})
FORMULAS = ("=", "+", "-", "@")  # a spreadsheet evaluates cells that start with one of these characters


@click.command()
@readable_run_argument
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The file, or - for stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "json", "jsonl"]),
    help="The output format. Defaults to the extension of the output file.",
)
def export(run: RunFolder, output: str, form: str | None) -> None:
    """Write the metrics of RUN as a wide table, with one column per metric.

    Values with the same step, iteration, epoch and kind are in one row. The column "at" contains the kind: "step" for means
    since the last log step, "epoch" for means over whole passes, and "value" for single values. Missing values are empty fields
    in CSV and missing keys in JSON. NaN and infinity are written as nan, inf and -inf; in JSON, these are strings. In CSV,
    control characters in names are escaped, and names that look like formulas are prefixed with an apostrophe. An existing file
    is replaced once the new one is complete.

    \b
    Examples:
      hookpoint export mine -o mine.csv
      hookpoint export mine -o - --format jsonl | jq .loss
    """
    write = WRITERS[_format(output, form)]
    source = run.path / SCALARS
    if not os.path.lexists(source):
        raise CommandError(f"{shown(run.where)} has no {SCALARS}; JSONWriter writes it")
    table = WideTable(source)
    if output == STDOUT:
        write(table, sys.stdout)
        return
    _refuse_own_files(run, Path(output))
    with _new_file(Path(output)) as file:
        count = write(table, file)
    note(f"{shown(output)}: {counted(count, 'row')}, {counted(len(table.columns), 'column')}")


def _format(output: str, form: str | None) -> str:
    extension = os.path.splitext(output)[1].lower().removeprefix(".")
    if form is None and extension not in WRITERS and output != STDOUT:
        raise CommandError(f"unknown format: {shown(output)}; use .csv, .json or .jsonl, or pass --format", USAGE)
    return form or (extension if extension in WRITERS else "csv")


def _write_csv(table: WideTable, file: TextIO) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, table.columns))
    count = 0
    for row in table.rows():
        count += 1
        if row["at"] not in KINDS:
            row["at"] = _cell(row["at"])
        if type(row.get("iteration", 0)) is not int:
            row["iteration"] = _cell(str(row["iteration"]))
        writer.writerow([*map(row.get, table.columns, repeat(""))])
    return count


def _cell(text: str) -> str:
    """Return text that is safe in terminals and spreadsheets. Control characters are escaped, and formulas are disabled.

    >>> _cell("loss"), _cell("a" + chr(27) + "[2J"), _cell("=1+1")
    ('loss', 'a\\\\x1b[2J', "'=1+1")
    """
    escaped = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return f"'{escaped}" if escaped.startswith(FORMULAS) else escaped


def _write_json(table: WideTable, file: TextIO) -> int:
    count = _write_lines(table, file, first="[\n  ", before=",\n  ", after="")
    file.write("\n]\n" if count else "[]\n")
    return count


def _write_lines(table: WideTable, file: TextIO, *, first: str = "", before: str = "", after: str = "\n") -> int:
    count = 0
    for count, row in enumerate(table.rows(), 1):
        try:
            line = _encode(row)
        except ValueError:  # NaN or infinity
            line = _encode(plain(row))
        file.write((first if count == 1 else before) + line + after)
    return count


_encode = json.JSONEncoder(allow_nan=False).encode

WRITERS: dict[str, Callable[[WideTable, TextIO], int]] = {"csv": _write_csv, "json": _write_json, "jsonl": _write_lines}


def _refuse_own_files(run: RunFolder, output: Path) -> None:
    for name in RUN_FILES:
        own = run.path / name
        if os.path.exists(own) and os.path.exists(output) and os.path.samefile(own, output):
            raise CommandError(f"{shown(output)} belongs to the run; choose another file", NOT_WRITTEN)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Write a new file and replace the old one atomically. If the target is a pipe, write to it directly."""
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with open(path, "w", encoding="utf-8", newline="") as file:
                yield file
            return
        target = path.resolve()  # keep a symbolic link, and replace its target
        with disk.replacing(target) as new, open(new, "x", encoding="utf-8", newline="", errors="backslashreplace") as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"cannot write {shown(path)}: {error.strerror or error}", NOT_WRITTEN) from error
