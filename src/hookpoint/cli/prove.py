"""`hookpoint prove`: check that a killed run resumes exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hookpoint.cli._named_object import named_object
from hookpoint.cli._output import print_lines
from hookpoint.core.text.terminal import printable
from hookpoint.run_folder.command_error import FINE, NO, USAGE, CommandError
from hookpoint.run_folder.formatting import shown


@click.command()
@click.argument("what", metavar="MODULE:MAKE_RUNNER")
@click.option(
    "--kill-at", type=click.IntRange(1), multiple=True, metavar="STEP", help="Kill the process after this step; repeatable."
)
@click.option("--workdir", type=click.Path(file_okay=False, path_type=Path), help="Store the runs in this new folder.")
@click.option("--key", metavar="FILE", help="For encrypted checkpoints: the file that contains the key, or env:NAME.")
def prove(what: str, kill_at: tuple[int, ...], workdir: Path | None, key: str | None) -> int:
    """Train twice, the second time with kills and resumes, and compare the results bit for bit.

    MAKE_RUNNER is a function in MODULE that takes a folder. It either returns a tuple of a Runner and a dict of arguments for
    fit, or trains in its own loop and returns None. It must save checkpoints. Without --kill-at, training is killed after a
    quarter, a half and three quarters of its steps. MODULE is imported; the current folder is searched first. The exit code is
    1 if anything differs.

    \b
    Examples:
      hookpoint prove train:make_runner
      hookpoint prove train:make_runner --kill-at 3 --kill-at 8 --workdir /tmp/proof
    """
    make_runner = named_object(what, "make_runner")
    if not callable(make_runner) or not _is_importable(make_runner):
        raise CommandError(f"{shown(what)} must be a function that takes a folder and that another process can import", USAGE)
    from hookpoint.presets.prove import prove as proven

    proof = proven(make_runner, kill_at=kill_at, workdir=workdir, key=key)
    print_lines(printable(line) for line in str(proof).splitlines())
    return FINE if proof.ok else NO


def _is_importable(function: Any) -> bool:
    """Return whether another process can import a function by name."""
    return "<" not in getattr(function, "__qualname__", "<") and getattr(function, "__module__", "__main__") != "__main__"
