"""`hookpoint prove`: whether a training can be killed and resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hookpoint.cli.named_object import named_object
from hookpoint.cli.output import put
from hookpoint.core.text.terminal import printable
from hookpoint.run_folder.command_error import FINE, NO, USAGE, CommandError
from hookpoint.run_folder.formatting import shown


@click.command()
@click.argument("what", metavar="MODULE:MAKE_RUNNER")
@click.option(
    "--kill-at", "kill_at", type=click.IntRange(1), multiple=True, metavar="STEP", help="Kill after this step; repeat it."
)
@click.option(
    "--workdir", type=click.Path(file_okay=False, path_type=Path), help="Keep the files of the runs in this new folder."
)
def prove(what: str, kill_at: tuple[int, ...], workdir: Path | None) -> int:
    """Train, then train the same again with kills in between, and compare what comes out, bit for bit.

    MAKE_RUNNER is a function in MODULE that gets a folder, and returns a runner and the arguments of its fit, as a tuple, or
    trains by itself; it has to save checkpoints. Without --kill-at it is killed after a quarter, a half and three quarters of
    its steps. MODULE is looked for in the current folder first. The exit code is 1 if anything differs.

    \b
    Examples:
      hookpoint prove train:make_runner
      hookpoint prove train:make_runner --kill-at 3 --kill-at 8 --workdir /tmp/proof
    """
    make_runner = named_object(what)
    if not callable(make_runner) or not _is_importable(make_runner):
        raise CommandError(f"{shown(what)} is no function of a module; give one that takes a folder", USAGE)
    from hookpoint.presets.prove import prove as proven

    proof = proven(make_runner, kill_at=kill_at, workdir=workdir)
    put(printable(line) for line in str(proof).splitlines())
    return FINE if proof.ok else NO


def _is_importable(given: Any) -> bool:
    """Say whether another process finds it by its name."""
    return "<" not in getattr(given, "__qualname__", "<") and getattr(given, "__module__", "__main__") != "__main__"
