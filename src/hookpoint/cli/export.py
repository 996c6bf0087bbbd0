"""`hookpoint export`: what was logged, as a table that other programs read."""

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
from typing import Any, TextIO

import click

from hookpoint.cli.output import note
from hookpoint.cli.run_argument import run_argument
from hookpoint.core.text.plain_values import plain
from hookpoint.run_folder.command_error import NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.formatting import counted, shown
from hookpoint.run_folder.pivot import WideTable
from hookpoint.run_folder.run_folder import SCALARS, RunFolder
from hookpoint.storage.checkpoint.layout import RUN_FILES
from hookpoint.storage.disk import disk

STDOUT = "-"
KINDS = frozenset({"step", "epoch", "value"})
FORMULAS = ("=", "+", "-", "@")  # what a cell begins with that a spreadsheet computes


@click.command()
@run_argument
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="The file; - is the standard output.")
@click.option(
    "--format", "form", type=click.Choice(["csv", "json", "jsonl"]), help="Else it goes by the end of the file's name."
)
def export(run: RunFolder, output: str, form: str | None) -> None:
    """Write what RUN logged as a wide table: one row per step, epoch and kind, one column per metric.

    The column "at" tells means since the last log step ("step") from means of whole passes ("epoch") and from single values
    ("value"). Where there is no value the field is empty, in JSON the key is left out. NaN and
    infinities are nan, inf and -inf, in JSON as strings. In CSV, names have control characters escaped, and a ' in front where
    a spreadsheet would take them for a formula. A file that is there is replaced when all is written.

    \b
    Examples:
      hookpoint export mine -o mine.csv
      hookpoint export mine -o - --format jsonl | jq .loss
    """
    write = WRITERS[_format(output, form)]
    source = run.path / SCALARS
    if not os.path.lexists(source):
        raise CommandError(f"{shown(run.path)} has no {SCALARS}: nothing was logged there with JSONWriter")
    found = WideTable(source)
    if output == STDOUT:
        write(found, sys.stdout)
        return
    _refuse_own_files(run, Path(output))
    with _new_file(Path(output)) as file:
        count = write(found, file)
    note(f"{shown(output)}: {counted(count, 'row')}, {counted(len(found.columns), 'column')}")


def _format(output: str, form: str | None) -> str:
    by_name = os.path.splitext(output)[1].lower().removeprefix(".")
    if form is None and by_name not in WRITERS and output != STDOUT:
        raise CommandError(f"the name {shown(output)} does not say what to write; end it with .csv, .json or .jsonl", USAGE)
    return form or (by_name if by_name in WRITERS else "csv")


def _write_csv(found: WideTable, file: TextIO) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_cell, found.columns))
    count = 0
    for row in found.rows():
        if row["at"] not in KINDS:
            row["at"] = _cell(row["at"])
        if type(row.get("iteration", 0)) is not int:
            row["iteration"] = _cell(str(row["iteration"]))
        writer.writerow([*map(row.get, found.columns, repeat(""))])
        count += 1
    return count


def _cell(text: str) -> str:
    """Return a text that neither a terminal nor a spreadsheet acts on: control characters escaped, no formula.

    >>> _cell("loss"), _cell("a" + chr(27) + "[2J"), _cell("=1+1")
    ('loss', 'a\\\\x1b[2J', "'=1+1")
    """
    plain_text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return f"'{plain_text}" if plain_text.startswith(FORMULAS) else plain_text


def _write_json(found: WideTable, file: TextIO) -> int:
    count = 0
    for row in found.rows():
        file.write(("[\n  " if count == 0 else ",\n  ") + _line(row))
        count += 1
    file.write("\n]\n" if count else "[]\n")
    return count


def _write_lines(found: WideTable, file: TextIO) -> int:
    count = 0
    for row in found.rows():
        file.write(_line(row) + "\n")
        count += 1
    return count


def _line(row: dict[str, Any]) -> str:
    try:
        return _encode(row)
    except ValueError:  # NaN or an infinity
        return _encode(plain(row))


_encode = json.JSONEncoder(allow_nan=False).encode


WRITERS: dict[str, Callable[[WideTable, TextIO], int]] = {"csv": _write_csv, "json": _write_json, "jsonl": _write_lines}


def _refuse_own_files(run: RunFolder, output: Path) -> None:
    for name in RUN_FILES:
        own = run.path / name
        if os.path.exists(own) and os.path.exists(output) and os.path.samefile(own, output):
            raise CommandError(f"{shown(output)} is a file of the run itself; choose another", NOT_WRITTEN)


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Write a file beside the one that is there, and put it in its place when it is whole. A pipe is written to as it is."""
    try:
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            with open(path, "w", encoding="utf-8", newline="") as file:
                yield file
            return
        target = path.resolve()  # a link stays one
        staged = target.with_name(disk.hidden("staging", target.name)[-200:])
        try:
            with open(staged, "x", encoding="utf-8", newline="", errors="backslashreplace") as file:
                yield file
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"{shown(path)} could not be written: {error.strerror or error}", NOT_WRITTEN) from error
