"""`hookpoint verify`: check checkpoints against their manifests."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hookpoint.cli._output import Column, note, print_json, print_lines, table, width
from hookpoint.cli._run_argument import RunType
from hookpoint.run_folder.command_error import FINE, NO
from hookpoint.run_folder.find_run import find_run
from hookpoint.run_folder.formatting import counted, shown
from hookpoint.storage.checkpoint.checkpoint_folder import is_like_a_checkpoint
from hookpoint.storage.checkpoint.layout import CHECKPOINTS, checkpoints, workdir_of
from hookpoint.storage.verify import Verification
from hookpoint.storage.verify import verify as verified


class _CheckpointType(RunType):
    """A run, or a checkpoint folder."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(value))
        is_checkpoint = is_like_a_checkpoint(path.resolve()) or path.resolve().name == CHECKPOINTS
        return path if os.path.isdir(path) and is_checkpoint else find_run(str(value)).path


@click.command()
@click.argument("path", type=_CheckpointType(), metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def verify(path: Path, as_json: bool) -> int:
    """Read every checkpoint of RUN and compare it with its manifest. RUN may also be a checkpoint folder.

    The command reads all files and changes nothing. The exit code is 1 if a checkpoint is damaged.

    \b
    Examples:
      hookpoint verify mine
      hookpoint verify runs/mine/checkpoints/step-00001200
    """
    result = _existing(path, verified(path))
    if as_json:
        print_json({"ok": result.ok, "checkpoints": [row._asdict() for row in result.rows]})
    elif not result.rows:
        note(f"no checkpoints in {shown(path)}")
    else:
        rows = [(shown(row.name), "" if row.step is None else f"step {row.step}", shown(row.verdict)) for row in result.rows]
        print_lines(table([Column(min_width=16), Column(drop=1), Column(wraps=True)], rows, width()))
        bad = sum(not row.ok for row in result.rows)
        note(f"{counted(len(result.rows), 'checkpoint')}, {bad or 'none'} damaged")
    return FINE if result.ok else NO


def _existing(path: Path, result: Verification) -> Verification:
    """Leave out checkpoints that a running process deleted during the verification."""
    if is_like_a_checkpoint(path.resolve()):
        return result
    folder = checkpoints(workdir_of(path.resolve()))
    return Verification(tuple(row for row in result.rows if row.ok or os.path.lexists(folder / row.name)))
