"""`hookpoint launch`: run a script in multiple processes, with torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from hookpoint.run_folder.command_error import NOT_WRITTEN, USAGE, CommandError
from hookpoint.run_folder.formatting import shown


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n",
    "--processes",
    default="auto",
    show_default=True,
    help="Processes per node; auto starts one process per GPU, or one process if there is no GPU.",
)
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[TORCHRUN OPTIONS] SCRIPT [ARGUMENTS]")
def launch(processes: str, arguments: tuple[str, ...]) -> None:
    """Use torchrun to run a script in multiple processes that train together.

    A Runner distributes its work automatically; see docs/parallel.md. Options before SCRIPT are passed to torchrun. For
    example, with --max-restarts 3, the run resumes from the last checkpoint when a process dies. To train on two machines, run
    the command with --nnodes 2 --rdzv-endpoint HOST:PORT on each of them. Without --nnodes, all processes run on
    this machine and listen on loopback only.

    \b
    Examples:
      hookpoint launch -n 2 train.py --epochs 10
      hookpoint launch -n 2 --max-restarts 3 train.py
      hookpoint launch -n 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node1:29500 train.py
    """
    if processes != "auto" and (not processes.isdecimal() or not int(processes)):
        raise CommandError(f"-n must be a number of processes >= 1, or auto, got {shown(processes)}", USAGE)
    if find_spec("torch") is None:
        raise CommandError("launch needs torch: pip install 'hookpoint[torch]'", NOT_WRITTEN)
    if not arguments[0].startswith("-") and not Path(arguments[0]).is_file():
        raise CommandError(f"script not found: {shown(arguments[0])}", USAGE)
    sys.stdout.flush()
    # Replace this process, so that torchrun receives signals directly and forwards them.
    if processes == "auto":
        import torch

        processes = "gpu" if torch.cuda.is_available() else "1"
    start = [sys.executable, "-m", "hookpoint.parallel.launch.launcher", "--nproc-per-node", processes]
    os.execv(sys.executable, [*start, *arguments])
