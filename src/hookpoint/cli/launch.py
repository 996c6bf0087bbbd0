"""`hookpoint launch`: a script in several processes, by torchrun."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from hookpoint.cli.refusal import NOT_WRITTEN, USAGE, Refusal
from hookpoint.cli.words import shown

MEETING = ("--nnodes", "--rdzv", "--master", "--node", "--standalone")  # options of how the machines of a run meet


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--processes", default="auto", show_default=True, help="How many here; auto: one for each GPU, or one.")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[TORCHRUN OPTIONS] SCRIPT [ARGUMENTS]")
def launch(processes: str, arguments: tuple[str, ...]) -> None:
    """Run a script in several processes that train together, by torchrun.

    A Runner shares its work among them by itself; docs/parallel.md says how. Options before SCRIPT are torchrun's, as
    --max-restarts 3 to begin again where the last checkpoint is, or --nnodes 2 --rdzv-endpoint HOST:PORT on each of two
    machines. Without them, all processes are here.

    \b
    Examples:
      hookpoint launch -n 2 train.py --epochs 10
      hookpoint launch -n 2 --max-restarts 3 train.py
      hookpoint launch -n 4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node1:29500 train.py
    """
    if processes != "auto" and (not processes.isdecimal() or not int(processes)):
        raise Refusal(f"-n {shown(processes)} is no number of processes; give 1 or more, or auto", USAGE)
    if find_spec("torch") is None:
        raise Refusal("torchrun comes with torch: pip install 'hookpoint[torch]'", NOT_WRITTEN)
    if not arguments[0].startswith("-") and not Path(arguments[0]).is_file():
        raise Refusal(f"there is no script {shown(arguments[0])}", USAGE)
    sys.stdout.flush()
    # A store for each restart: in one that all share, the first of the new processes finds the addresses of the dead.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # In its place, not below it: signals reach torchrun, which passes them on.
    os.execv(sys.executable, command(processes, arguments))


def command(processes: str, arguments: tuple[str, ...]) -> list[str]:
    """Return what to run: torchrun with these options.

    >>> command("2", ("--max-restarts", "1", "train.py", "--epochs", "3"))[1:]
    ['-m', 'torch.distributed.run', '--nproc-per-node', '2', '--standalone', '--max-restarts', '1', 'train.py', '--epochs', '3']
    """
    own = [one.replace("_", "-") for one in _before_script(arguments)]
    meets = any(one.startswith(MEETING) for one in own)
    number = ("gpu" if _has_gpus() else "1") if processes == "auto" else processes
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", number]
    return [*start, *([] if meets else ["--standalone"]), *arguments]


def _before_script(arguments: tuple[str, ...]) -> list[str]:
    """Return the options that stand before the script: up to the first file of Python, or all of them."""
    ends = [number for number, one in enumerate(arguments) if one.endswith(".py") or one == "-m"]
    return list(arguments[: ends[0]] if ends else arguments)


def _has_gpus() -> bool:
    import torch

    return torch.cuda.is_available()
